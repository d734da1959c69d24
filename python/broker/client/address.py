"""The address of the broker: its base URL, and names below `localhost`.

Every name that ends in `.localhost` is the loopback interface (RFC 6761, section 6.3), but resolvers outside
browsers seldom know. So such a host is connected to at 127.0.0.1, with the `Host` header, by which the broker
tells accounts apart, left as it is.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import httpx

LOOPBACK = "127.0.0.1"
API_PATH = "/api/v1"
USUAL_ACCOUNT = "demo"
"""The account of hosts that name none, unless a broker is set up otherwise."""


def is_local_name(host: str | None) -> bool:
    """Whether `host` is a name below `localhost`."""
    return (host or "").rstrip(".").lower().endswith(".localhost")


def parse_base_url(text: str) -> httpx.URL:
    """Read a base URL such as `http://demo.localhost:8000`; a path of `/api/v1` is understood too.

    Raises:
        ValueError: the scheme is not http or https, the host is missing, or there is another path or a query.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"{text}: must be an http or https URL with a host, such as http://demo.localhost:8000"
        )
    if url.path.rstrip("/") not in ("", API_PATH) or url.query or url.fragment:
        raise ValueError(f"{text}: must have no path and no query")
    return url.copy_with(path=API_PATH)


def account_of(base_url: httpx.URL) -> str:
    """The account that a base URL names by the first label of its host; the usual one when it names none."""
    label, dot, _ = base_url.host.lower().rstrip(".").partition(".")
    return label if dot and not _is_address(base_url.host) else USUAL_ACCOUNT


class LoopbackTransport(httpx.AsyncHTTPTransport):
    """Connects to 127.0.0.1 whatever the URL's host; the `Host` header has been made from the URL already."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` to the loopback interface; over TLS the server is asked for by its name."""
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        request.url = request.url.copy_with(host=LOOPBACK)
        return await super().handle_async_request(request)


def http_options(base_url: httpx.URL, limits: httpx.Limits) -> dict[str, Any]:
    """What `httpx.AsyncClient` needs to reach `base_url`."""
    if is_local_name(base_url.host):
        return {"transport": LoopbackTransport(limits=limits)}
    return {"limits": limits}


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
