"""Origins of web pages, as browsers send them in `Origin` (RFC 6454, 6.2; WHATWG URL for the host)."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna

_WITHOUT_HOST = frozenset({"null", "file://"})
"""What browsers send for pages from files, such as overlays, and for pages in a sandbox."""
_PARTS = re.compile(
    r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^/\\?#@:\[\]\s]+)(?::([0-9]{1,5}))?/?", re.IGNORECASE
)
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"https": 443, "http": 80}
_PORTS = range(1, 65_536)
_MAX_CHARACTERS = 300  # a host name has 253
_NOT_OF_PAGES = frozenset({"ws", "wss"})  # what a page connects to, which has the origin of the page
_SHAPE = "must be scheme://host or scheme://host:port, as in https://overlay.example.org"


def parse_origin(text: str) -> str:
    """The origin as a browser writes it: lower case, the host in ASCII, without the port that its scheme has.

    A slash at the end is dropped, since it is often copied with an address. Raises ValueError.
    """
    if text.lower() in _WITHOUT_HOST:
        return text.lower()
    parts = _PARTS.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if parts is None:
        raise ValueError(_SHAPE)
    scheme, host, port = parts[1].lower(), _host(parts[2]), parts[3]
    if scheme in _NOT_OF_PAGES:
        raise ValueError("must be the origin of a page, with https or http")
    if port is not None and int(port) not in _PORTS:
        raise ValueError(f"the port must be from {_PORTS[0]} to {_PORTS[-1]}")
    if port is None or int(port) == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}"


def _host(text: str) -> str:
    if "*" in text:
        raise ValueError("must name one host; each is given by itself")
    try:
        if text.startswith("["):
            return f"[{_compressed(IPv6Address(text[1:-1]))}]"
        host = text.lower() if text.isascii() else idna.encode(text, uts46=True).decode()
        labels = host.removesuffix(".").split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(host))
    except (AddressValueError, idna.IDNAError):
        raise ValueError(_SHAPE) from None
    if not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(_SHAPE)
    return host


def _compressed(address: IPv6Address) -> str:
    """Without dots, which Python writes since 3.13 for an IPv4 address within."""
    if address.ipv4_mapped is None:
        return address.compressed
    low = int(address.ipv4_mapped)
    return f"::ffff:{low >> 16:x}:{low & 0xFFFF:x}"
