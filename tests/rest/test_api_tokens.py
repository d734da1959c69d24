"""An API token is taken wherever an access token is; WebSocket and streams are in tests/gateway."""

import re

import httpx
import pytest

from broker.resources.catalogue import build_registry
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FORBIDDEN = {"createApiToken"}  # a token does not make its own heirs


@pytest.mark.parametrize("role", ["admin", "producer", "user"])
async def test_an_api_token_is_a_bearer_token_on_every_route(product: Product, role: str) -> None:
    async with product.door(role) as door:
        made = (await door.post("/users/me/tokens", json={"name": "mixer"})).json()
        as_user = await _ask_everything(door)
    async with product.door(None, Authorization=f"Bearer {made['token']}") as door:
        assert (await door.get("/users/me")).json()["username"] == role
        as_token = await _ask_everything(door)
    assert 401 not in as_token.values()
    assert {name: as_token[name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, 403)
    assert as_token | dict.fromkeys(FORBIDDEN) == as_user | dict.fromkeys(FORBIDDEN)


async def test_an_api_token_is_taken_in_a_body(product: Product) -> None:
    async with product.door("user") as door:
        made = (await door.post("/users/me/tokens", json={"name": "mixer"})).json()
    async with product.door(None) as door:
        assert (await door.post("/ping", json={})).status_code == 401
        for body in ({"json": {"access_token": made["token"]}}, {"data": {"access_token": made["token"]}}):
            assert (await door.post("/ping", **body)).status_code == 200


async def _ask_everything(door: httpx.AsyncClient) -> dict[str, int]:
    """The status of a request of every route, for things that are not there."""
    statuses = dict[str, int]()
    for operation in build_registry().routed:
        assert operation.route is not None
        path = re.sub(r"\{\w+\}", "nothing", operation.route.path)
        body = {"name": "heir"} if operation.name in FORBIDDEN else {}
        has_body = operation.route.method in ("POST", "PUT", "PATCH")
        reply = await door.request(operation.route.method, path, json=body if has_body else None)
        statuses[operation.name] = reply.status_code
    return statuses
