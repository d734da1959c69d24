"""Headers of every response of the HTTP port, whichever process sends it."""

RawHeader = tuple[bytes, bytes]

NO_SNIFF: RawHeader = (b"x-content-type-options", b"nosniff")
"""No browser takes a reply for anything else than it says to be. The ingress knows our replies by it."""

# Pages of any origin may call: tokens come in a header that a page must know, never in cookies.
CROSS_ORIGIN: tuple[RawHeader, ...] = (
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"Content-Disposition, ETag, Link, Location, Retry-After, WWW-Authenticate, X-Request-Id,"
        b" X-Upstream-Status",
    ),
)
EVERY_REPLY: tuple[RawHeader, ...] = (NO_SNIFF, *CROSS_ORIGIN)
