"""Programs over HTTP."""

import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def test_create_answers_the_resource_and_where_it_is(product: Product) -> None:
    async with product.door() as door:
        answer = await door.post(
            "/programs",
            json={"id": "a", "name": "A", "scheduledStartTime": "2026-01-01T10:00:00+02:00"},
        )
        again = await door.get("/programs/a")
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/programs/a"
    body = answer.json()
    assert body["scheduledStartTime"] == "2026-01-01T08:00:00.000Z"
    assert body["live"] is False
    assert again.json() == body


async def test_publish(product: Product) -> None:
    await product.make_program("b")
    async with product.door("producer") as door:
        answer = await door.post("/programs/b/events", json={"event": "A#b", "metadata": {"x": 1}})
        assert answer.status_code == 201, answer.text
        listed = await door.get("/programs/b/events")
    assert listed.json() == [answer.json()]
