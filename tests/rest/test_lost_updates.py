"""Changes that cross: each takes effect on what the one before it left, and so do its rights.

A change is held up where it leaves the door, after everything that the door reads, while another one is made.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from broker.owners.commands import (
    AdoptImport,
    DeleteEvent,
    DeleteEvents,
    DeleteProgram,
    ProgramCommand,
    UpdateEvent,
    UpdateProgram,
)
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

Request = Callable[[httpx.AsyncClient], Any]
Kind = ProgramCommand[Any]


@asynccontextmanager
async def held_up(
    product: Product, monkeypatch: pytest.MonkeyPatch, kind: type[Kind], role: str, request: Request
) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """Inside the block the request of `role` waits at the door of the owners; after it, it goes on."""
    submit = product.owners.submit
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def late(command: ProgramCommand[Any]) -> Any:
        if isinstance(command, kind) and not arrived.is_set():  # what comes after it is not held up
            arrived.set()
            await go_on.wait()
        return await submit(command)

    monkeypatch.setattr(product.owners, "submit", late)
    async with product.door(role) as door:
        task = asyncio.ensure_future(request(door))
        try:
            async with asyncio.timeout(20):
                await arrived.wait()
            yield task
        finally:
            go_on.set()
            await asyncio.wait([task])


async def update(door: httpx.AsyncClient, program_id: str, name: str, **fields: Any) -> httpx.Response:
    body = {"id": program_id, "name": name, "scheduledStartTime": None, "scheduledEndTime": None}
    return await door.put(f"/programs/{program_id}", json=body | fields)


async def read(product: Product, program_id: str) -> dict[str, Any]:
    async with product.door() as door:
        return dict((await door.get(f"/programs/{program_id}")).json())


async def test_a_rename_does_not_undo_private(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    await product.make_program("crossing", projectId="own", metadata={"a": 1})
    rename = held_up(
        product, monkeypatch, UpdateProgram, "producer", lambda door: update(door, "crossing", "Renamed")
    )
    async with rename as renaming, product.door() as door:
        answer = await update(door, "crossing", "crossing", access="private", metadata={"a": 2})
        assert answer.json()["access"] == "private"
    assert renaming.result().status_code == 200
    program = await read(product, "crossing")
    assert (program["name"], program["access"], program["metadata"]) == ("Renamed", "private", {"a": 2})
    assert renaming.result().json() == program
    async with product.door(None) as door:
        assert (await door.get("/programs/crossing/events")).status_code == 401


async def test_null_clears_and_absent_keeps_what_another_has_set(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    await product.make_program("clearing", projectId="own", metadata={"a": 1})
    clearing = held_up(
        product,
        monkeypatch,
        UpdateProgram,
        "admin",
        lambda door: update(door, "clearing", "Cleared", metadata=None),
    )
    async with clearing, product.door() as door:
        await update(door, "clearing", "x", projectId=None, metadata={"a": 2})
    program = await read(product, "clearing")
    assert (program["name"], program["projectId"], program["metadata"]) == ("Cleared", None, None)


@pytest.mark.parametrize("kind", [UpdateProgram, DeleteProgram, DeleteEvents, AdoptImport])
async def test_rights_are_those_of_the_moment_of_the_change(
    product: Product, monkeypatch: pytest.MonkeyPatch, kind: type[Kind]
) -> None:
    """A producer's change of a program that goes to a project of others while it is under way."""
    program_id = f"moved-by-{kind.__name__}"
    path = f"/programs/{program_id}"
    requests: dict[type[Kind], Request] = {
        UpdateProgram: lambda door: update(door, program_id, "Mine"),
        DeleteProgram: lambda door: door.delete(path),
        DeleteEvents: lambda door: door.delete(f"{path}/events"),
        AdoptImport: lambda door: door.post(f"{path}/events/import", json={"events": []}),
    }
    await product.make_program(program_id, projectId="own")
    await product.publish(program_id, {"event": "A#b"})
    change = held_up(product, monkeypatch, kind, "producer", requests[kind])
    async with change as changing, product.door() as door:
        assert (await update(door, program_id, "Theirs", projectId="foreign")).status_code == 200
    assert changing.result().status_code == 403
    assert (await read(product, program_id))["name"] == "Theirs"
    async with product.door() as door:
        assert len((await door.get(f"{path}/events")).json()) == 1


@pytest.mark.parametrize(("kind", "method"), [(UpdateEvent, "put"), (DeleteEvent, "delete")])
async def test_rights_on_an_event_are_those_of_the_moment_of_the_change(
    product: Product, monkeypatch: pytest.MonkeyPatch, kind: type[Kind], method: str
) -> None:
    program_id = f"corrected-{method}"
    await product.make_program(program_id, projectId="own")
    (event,) = await product.publish(program_id, {"event": "A#b"})
    path = f"/programs/{program_id}/events/{event['id']}"
    body = {"json": {"event": "A#c"}} if method == "put" else {}
    change = held_up(product, monkeypatch, kind, "producer", lambda door: getattr(door, method)(path, **body))
    async with change as changing, product.door() as door:
        await update(door, program_id, "Theirs", projectId="foreign", access="private")
    assert changing.result().status_code == 404
    async with product.door() as door:
        assert (await door.get(path)).json()["event"] == "A#b"


async def test_a_project_that_goes_takes_no_program_that_has_left_it(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with product.door() as door:
        await door.post("/projects", json={"id": "leaving", "name": "A"})
    await product.make_program("left", projectId="leaving")
    deletion = held_up(
        product,
        monkeypatch,
        DeleteProgram,
        "admin",
        lambda door: door.delete("/projects/leaving?cascade=true"),
    )
    async with deletion as deleting, product.door() as door:
        assert (await update(door, "left", "Saved", projectId="own")).status_code == 200
    assert deleting.result().status_code == 204
    assert (await read(product, "left"))["name"] == "Saved"


# -- a project that goes, and what comes into it meanwhile

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
_NOBODY_ANNOUNCES = "SELECT pg_advisory_xact_lock(hashtextextended('program_changes/demo', 0))"


async def make_project(product: Product, project_id: str) -> None:
    async with product.door() as door:
        assert (await door.post("/projects", json={"id": project_id, "name": "P"})).status_code == 201


async def delete_project(product: Product, project_id: str) -> httpx.Response:
    async with product.door() as door:
        return await door.delete(f"/projects/{project_id}?cascade=true")


async def until_waiting(product: Product, count: int, *tasks: "asyncio.Task[Any]") -> None:
    """Until so many wait for locks of the database, or one of the tasks has ended."""
    async with asyncio.timeout(20):
        while not any(task.done() for task in tasks):
            async with product.services.database.connection() as connection:
                if await connection.fetchval(_WAITING) >= count:
                    return
            await asyncio.sleep(0.01)


async def assert_empty(product: Product, project_id: str, program_id: str) -> None:
    """The project is gone, and the program with it; one that is made again has nothing of it."""
    async with product.door() as door:
        assert (await door.get(f"/projects/{project_id}")).status_code == 404
        assert (await door.get(f"/programs/{program_id}")).status_code == 404
    await make_project(product, project_id)
    async with product.door() as door:
        assert (await door.get(f"/projects/{project_id}/programs")).json() == []


async def test_no_program_is_made_in_a_project_that_went_meanwhile(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_project(product, "going")
    create = product.services.programs.create
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any, **named: Any) -> None:
        arrived.set()
        await go_on.wait()
        await create(*arguments, **named)

    monkeypatch.setattr(product.services.programs, "create", late)
    async with product.door() as door:
        body = {"id": "too-late", "name": "A", "projectId": "going"}
        creating = asyncio.ensure_future(door.post("/programs", json=body))
        await asyncio.wait_for(arrived.wait(), 20)
        assert (await delete_project(product, "going")).status_code == 204
        go_on.set()
        answer = await creating
    assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
    assert "the project going " in answer.json()["error_description"]
    await assert_empty(product, "going", "too-late")


async def test_a_project_goes_with_the_program_that_was_being_made_in_it(product: Product) -> None:
    await make_project(product, "closing")
    async with product.door() as door, product.services.database.transaction() as connection:
        await connection.execute(_NOBODY_ANNOUNCES)
        body = {"id": "just-in-time", "name": "A", "projectId": "closing"}
        creating = asyncio.ensure_future(door.post("/programs", json=body))
        await until_waiting(product, 1)
        deleting = asyncio.ensure_future(delete_project(product, "closing"))
        await until_waiting(product, 2, deleting)
    assert (await creating).status_code == 201
    assert (await deleting).status_code == 204
    await assert_empty(product, "closing", "just-in-time")


async def test_no_program_comes_into_a_project_that_went_meanwhile(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_project(product, "leaving-too")
    await product.make_program("moving", projectId="own")
    moving = held_up(
        product,
        monkeypatch,
        UpdateProgram,
        "admin",
        lambda door: update(door, "moving", "Moved", projectId="leaving-too"),
    )
    async with moving as moved:
        assert (await delete_project(product, "leaving-too")).status_code == 204
    assert (moved.result().status_code, moved.result().json()["error"]) == (409, "conflict")
    program = await read(product, "moving")
    assert (program["name"], program["projectId"]) == ("moving", "own")


async def test_nobody_waits_for_a_project_that_is_being_deleted(product: Product) -> None:
    """An owner would keep all its programs waiting."""
    await make_project(product, "deleted-slowly")
    await product.make_program("staying", projectId="own")
    async with product.door() as door, product.services.database.transaction() as connection:
        await connection.execute("DELETE FROM projects WHERE id = 'deleted-slowly'")
        refused = [
            await update(door, "staying", "Moved", projectId="deleted-slowly"),
            await door.post("/programs", json={"id": "n", "name": "N", "projectId": "deleted-slowly"}),
        ]
    assert [(answer.status_code, answer.json()["error"]) for answer in refused] == [(409, "conflict")] * 2
