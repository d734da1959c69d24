"""Times leave us in one format, whichever operation tells them: ISO 8601 in UTC with milliseconds and `Z`."""

import re
from typing import Any

import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
EVENT = {"event": "A#b"}


def times(value: Any) -> list[str]:
    """The values of all members that are named like a time."""
    if isinstance(value, list):
        return [found for item in value for found in times(item)]
    if not isinstance(value, dict):
        return []
    own = [item for name, item in value.items() if name.lower().endswith(("time", "expires")) and item]
    return own + [found for item in value.values() for found in times(item)]


async def test_every_resource_tells_times_alike(product: Product) -> None:
    async with product.door() as door:
        made = [
            await door.post("/projects", json={"id": "timed", "name": "n"}),
            await door.post(
                "/programs", json={"id": "timed", "name": "n", "scheduledStartTime": "2026-01-01"}
            ),
            await door.post("/programs/timed/events", json=EVENT),
            await door.post("/programs/timed/events", json={"events": [EVENT, EVENT]}),
            await door.post("/storage/timed", json={"id": "v", "metadata": {}}),
            await door.post("/projects/timed/revisions", json={"title": "t", "status": "published"}),
            await door.post(
                "/users", json={"username": "timed", "password": "correct-horse", "role": "user"}
            ),
            await door.post("/users/me/tokens", json={"name": "t", "expires": "2030-01-01T00:00:00+02:00"}),
        ]
        event = made[2].json()["id"]
        read = [
            await door.get(path)
            for path in (
                "/projects",
                "/projects/timed",
                "/projects/timed/programs",
                "/programs/timed",
                "/programs/filter?ids=timed",
                "/programs/timed/events",
                f"/programs/timed/events/{event}",
                "/programs/timed/events/filter",
                "/programs/timed/events/export",
                "/storage/timed/v",
                "/projects/timed/application",
                "/projects/timed/application/revisions",
                "/projects/timed/application/live/1",
                "/users",
                "/users/me",
                "/users/me/tokens",
                "/audit",
                "/version",
            )
        ]
        changed = [
            await door.put(f"/programs/timed/events/{event}", json={"timestamp": 5}),
            await door.put(
                "/programs/timed",
                json={
                    "id": "timed",
                    "name": "m",
                    "scheduledStartTime": "2026-01-01",
                    "scheduledEndTime": None,
                },
            ),
            await door.put("/projects/timed", json={"name": "m"}),
        ]
    for answer in (*made, *read, *changed):
        assert answer.status_code in (200, 201), (answer.url, answer.text)
        assert all(TIME.fullmatch(time) for time in times(answer.json())), (answer.url, answer.text)
    assert sum(len(times(answer.json())) for answer in (*made, *read)) > 40
    (listed,) = [each for each in read[5].json() if each["id"] == event]
    assert listed["createdTime"] == made[2].json()["createdTime"] == changed[0].json()["createdTime"]
