"""Which addresses are public, including every spelling that hides a private address.

IPv4 is refused by a list (IANA IPv4 Special-Purpose Address Registry, RFC 6890). Of IPv6 only the space that
is given out to the internet is taken (2000::/3), less its special blocks (IANA IPv6 registry); this refuses
loopback, unique local, link-local, multicast and every form that carries an IPv4 address: mapped,
compatible and NAT64 lie outside, 6to4 and Teredo are blocks of the list, and an ISATAP address shows it in
its lower half. Even where the IPv4 inside is public, such a form is refused: no server is published under
one. A network's own NAT64 prefix (RFC 6052, section 2.2) looks like any other address; only its operator
knows it.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

IpAddress = IPv4Address | IPv6Address

_REFUSED_V4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; also metadata of one cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's platform service, public by number only
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
"""The upper half of the interface identifier that an IPv4 address follows (RFC 5214, section 6.1)."""
_DOTTED_QUAD = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)


def is_public(address: IpAddress) -> bool:
    """Whether the address is one of the open internet."""
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _REFUSED_V4)
    if address.scope_id is not None or address not in _GLOBAL_V6:
        return False
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in block for block in _REFUSED_V6)


def parse_address(text: str) -> IpAddress | None:
    """The address that a text is in its one usual spelling, or None."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_odd_number(host: str) -> bool:
    """Whether a resolver would read `host` as an IPv4 address that is not written as four decimal numbers.

    Such as `127.1`, `0x7f.0.0.1`, `2130706433` and `0177.0.0.1` (inet_aton(3); WHATWG URL, section 3.5,
    "ends in a number"): honest URLs have no use for them.
    """
    labels = host.removesuffix(".").split(".")
    return _NUMBER.fullmatch(labels[-1]) is not None and _DOTTED_QUAD.fullmatch(host) is None
