"""Which addresses are one caller, where limits and turns are by address."""

import ipaddress
from functools import lru_cache

_IPV6_SITE_BITS = 64  # what one household or server is given: its addresses are one caller
_CALLERS = 4_096  # addresses that are remembered


@lru_cache(_CALLERS)
def caller_of(address: str) -> str:
    """What counts as one caller: an IPv4 address, or the network of an IPv6 address."""
    network = network_of(address, 32, _IPV6_SITE_BITS)
    return network.removesuffix("/32") if ":" not in network else network


def network_of(address: str, ipv4_bits: int, ipv6_bits: int) -> str:
    """The network of an address, which an IPv4 address inside IPv6 has as IPv4; other text stays as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    bits = ipv4_bits if parsed.version == 4 else ipv6_bits
    return str(ipaddress.ip_network((parsed, bits), strict=False))
