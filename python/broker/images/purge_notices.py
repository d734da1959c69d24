"""The header by which a process tells an image replica up to where it must know the purges.

Replicas read the purges every few seconds. A request that has to see a purge which was made a moment ago
names the number of that purge; a replica that knows less reads before it looks at any cache. Reading costs a
query, and the image proxy is open to everybody, so the number is signed with the secret of the ingress, which
all of our processes share (HMAC-SHA256, RFC 2104). A header that is not ours is no error and does nothing.
Without such a secret, as where HAProxy cannot run, the key is empty and every caller is believed
(`broker.rest.callers`).
"""

import hmac

HEADER = "x-broker-purges"

_PURPOSE = "image purges"


def write_notice(key: str, number: int) -> str:
    """The value of the header. Args: key: the secret of the ingress; number: of a purge, not negative."""
    return f"{number} {_signature(key, str(number))}"


def read_notice(key: str, value: str) -> int | None:
    """The number that a header names; None for one that this secret has not signed. Raises nothing."""
    number, _, signature = value.partition(" ")
    if not hmac.compare_digest(signature.encode(), _signature(key, number).encode()):
        return None
    return int(number) if number.isdecimal() else None


def _signature(key: str, number: str) -> str:
    return hmac.digest(key.encode(), f"{_PURPOSE}\n{number}".encode(), "sha256").hex()
