"""The address that a request came from, behind proxies that are believed."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

_CALLERS = 10_000
_REMEMBERED_CHARACTERS = 256  # of a header; a stranger does not fill the memory with longer ones

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """Finds the caller's address behind proxies that are believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: list[_Network] = [ipaddress.ip_network(text, strict=False) for text in networks]
        # Reading addresses takes longer than most of what else a request takes.
        self._recall = lru_cache(_CALLERS)(self._caller)

    def caller(self, peer: str, forwarded_for: str) -> str:
        """The address that is not a trusted proxy's, nearest to us; `peer` when nothing better is known.

        Each proxy appends the address that it was called from, so the list is read from its end, for as long
        as what stands there is a proxy of ours. What a caller writes into it itself stands before that.
        """
        read = self._recall if len(forwarded_for) <= _REMEMBERED_CHARACTERS else self._caller
        return read(peer, forwarded_for)

    def _caller(self, peer: str, forwarded_for: str) -> str:
        address = _address(peer) or peer
        hops = [hop.strip() for hop in forwarded_for.split(",")] if forwarded_for else []
        while hops and self._is_trusted(address):
            hop = _address(hops.pop())
            if hop is None:
                break
            address = hop
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def _address(text: str) -> str | None:
    """An address from a list entry, which some proxies write with a port; IPv4 inside IPv6 is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    except ValueError:
        return None
