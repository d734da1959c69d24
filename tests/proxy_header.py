"""Headers of the PROXY protocol as front doors send them, and as nobody should."""

import ipaddress

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL = SIGNATURE + b"\x20\0\0\0"
"""Version 2: the front door speaks for itself, as in a health check."""


def line(source: str) -> bytes:
    """Version 1. Args: source: the address of the client."""
    kind, here = ("TCP4", "127.0.0.1") if ipaddress.ip_address(source).version == 4 else ("TCP6", "::1")
    return f"PROXY {kind} {source} {here} 56324 443\r\n".encode()


def binary(source: str, fields: bytes = b"") -> bytes:
    """Version 2. Args: fields: optional ones, encoded."""
    address = ipaddress.ip_address(source)
    family, here = (b"\x11", b"\x7f\0\0\x01") if address.version == 4 else (b"\x21", bytes(15) + b"\x01")
    body = address.packed + here + b"\xdc\x04\x01\xbb" + fields
    return SIGNATURE + b"\x21" + family + len(body).to_bytes(2, "big") + body


MALFORMED = {
    "no header": b"",
    "another word": b"PROXI TCP4 192.0.2.7 127.0.0.1 1 2\r\n",
    "no address": b"PROXY TCP4 nobody 127.0.0.1 1 2\r\n",
    "another family": b"PROXY TCP6 192.0.2.7 127.0.0.1 1 2\r\n",
    "a long line": b"PROXY UNKNOWN " + b"x" * 108 + b"\r\n",
    "another version": SIGNATURE + b"\x31\x11\0\x0c" + bytes(12),
    "another command": SIGNATURE + b"\x2f\x11\0\x0c" + bytes(12),
    "too short for its addresses": SIGNATURE + b"\x21\x11\0\x0b" + bytes(11),
    "a field that is cut": binary("192.0.2.7", b"\x04\0\x09x"),
    "too long": SIGNATURE + b"\x21\x11\xff\xff" + bytes(5_000),
}
"""By what is wrong; each is followed by a request."""
