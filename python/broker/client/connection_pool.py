"""The HTTP connections of one client, by httpx.

Apart from the engine, which imports it with the first client: httpx takes as long to import as all the rest
of the SDK, and where the packages for its own command line are installed twice as long.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from broker.client.address import API_PATH, LOOPBACK, is_local_name


class ConnectionPool:
    """Sends requests to one broker. Safe for concurrent use within one event loop."""

    broken = httpx.TransportError
    """What a request that brings no answer raises, and a read of one that breaks off."""
    never_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
    """Those of it after which the broker has nothing of the request."""

    def __init__(self, base_url: str, timeout_s: float) -> None:
        """Connect to nothing yet. Raises ValueError when `base_url` is none."""
        self.base_url = parse_base_url(base_url)
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=httpx.Timeout(timeout_s),
            headers={"User-Agent": "broker-sdk"},
            **_options(self.base_url, httpx.Limits(max_connections=100, max_keepalive_connections=20)),
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        content: bytes | AsyncIterator[bytes] | None,
        headers: Mapping[str, str],
        timeout_s: float,
        is_streamed: bool = False,
    ) -> httpx.Response:
        """Send a request to a path below `/api/v1`; with `is_streamed` the body is still to be read.

        Raises:
            httpx.TransportError: there was no answer.
        """
        request = self._client.build_request(
            method,
            path.lstrip("/"),
            params=query or None,  # an empty one takes the query of the path away
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout_s),
        )
        return await self._client.send(request, stream=is_streamed)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


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


def next_cursor(reply: httpx.Response) -> str | None:
    """The `cursor` of the URL of the next page (RFC 8288), None on the last one."""
    url = reply.links.get("next", {}).get("url")
    return None if url is None else httpx.URL(url).params.get("cursor")


class LoopbackTransport(httpx.AsyncHTTPTransport):
    """Connects to 127.0.0.1 whatever the URL's host; the `Host` header has been made from the URL already."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` to the loopback interface; over TLS the server is asked for by its name."""
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        request.url = request.url.copy_with(host=LOOPBACK)
        return await super().handle_async_request(request)


def _options(base_url: httpx.URL, limits: httpx.Limits) -> dict[str, Any]:
    """What `httpx.AsyncClient` needs to reach `base_url`."""
    if is_local_name(base_url.host):
        return {"transport": LoopbackTransport(limits=limits)}
    return {"limits": limits}
