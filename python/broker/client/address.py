"""Names below `localhost`, and what a WebSocket needs to reach one.

Every name that ends in `.localhost` is the loopback interface (RFC 6761, section 6.3), but resolvers outside
browsers seldom know. So such a host is connected to at 127.0.0.1, with the `Host` header, by which the broker
tells accounts apart, left as it is.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
API_PATH = "/api/v1"
USUAL_ACCOUNT = "demo"
"""The account of hosts that name none, unless a broker is set up otherwise."""


def is_local_name(host: str | None) -> bool:
    """Whether `host` is a name below `localhost`."""
    return (host or "").rstrip(".").lower().endswith(".localhost")


def account_of(host: str) -> str:
    """The account that the host of a base URL names by its first label; the usual one when it names none."""
    label, dot, _ = host.lower().rstrip(".").partition(".")
    return label if dot and not _is_address(host) else USUAL_ACCOUNT


def websocket_options(url: str) -> dict[str, Any]:
    """What `websockets.connect` needs to reach `url`: for a local name another address and no proxy.

    Raises:
        ValueError: it is no WebSocket URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(f"{url}: must be a ws or wss URL")
    if not is_local_name(parts.hostname):
        return {}
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    return {"host": LOOPBACK, "port": port, "proxy": None}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
