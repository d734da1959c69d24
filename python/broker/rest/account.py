"""The account of a request."""


def account_of_host(host: str, public_host: str, default: str) -> str:
    """The account that a `Host` header names; it need not exist.

    A host below the public one names its account by what stands in front, so `a.b.<public host>` names one
    that cannot exist. Any other host means the default account.
    """
    name = host.strip().lower()
    if not name.startswith("["):  # an IPv6 address has colons of its own
        name = name.partition(":")[0]
    name = name.rstrip(".")
    suffix = f".{public_host.lower()}"
    return name[: -len(suffix)] if name.endswith(suffix) else default
