"""The HTTP door, asked byte by byte: paths, headers and bodies that a client library would not send."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from broker.rest.door import Door


@dataclass
class Told:
    """An answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The body of an error; of anything else an empty one."""
        return dict(orjson.loads(self.body)) if self.status >= 400 else {}

    @property
    def fields(self) -> list[str]:
        return [fault["field"] for fault in self.error.get("errors", [])]


async def ask(
    app: Door,
    method: str,
    target: str | bytes,
    body: bytes = b"",
    *,
    account: str = "demo",
    token: str | None = None,
    media_type: str | None = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Told:
    """Ask for `target`, a path with its query below the root, exactly as it is given."""
    raw = target.encode() if isinstance(target, str) else target
    path, _, query = raw.partition(b"?")
    sent = {"host": f"{account}.localhost:8000", **{k.lower(): v for k, v in (headers or {}).items()}}
    if token is not None:
        sent["authorization"] = f"Bearer {token}"
    if body:
        sent["content-length"] = str(len(body))
        if media_type is not None:
            sent["content-type"] = media_type
    scope = {
        "type": "http",
        "method": method,
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
    }
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start, *parts = messages
    told = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Told(start["status"], told, b"".join(part["body"] for part in parts))
