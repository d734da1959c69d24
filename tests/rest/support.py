"""What the tests of the HTTP door share."""

import asyncio
from typing import Any

import httpx

from tests.product import Product


def field(answer: httpx.Response) -> str:
    """The field at fault."""
    return str(answer.json()["errors"][0]["field"])


async def call(product: Product, scope: dict[str, Any], *messages: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body of a request that no well-behaved client would send."""
    token = f"Bearer {product.tokens['admin']}".encode()
    scope = {"headers": [(b"host", b"localhost"), (b"authorization", token)]} | scope
    waiting = list(messages)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await product.app(scope, receive, send)
    status = sent[0]["status"] if sent else 0
    return status, b"".join(message.get("body", b"") for message in sent[1:])
