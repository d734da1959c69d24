"""However many lists are read, half of the connections to the database are left to everything else."""

import asyncio
from contextlib import AbstractAsyncContextManager

import asyncpg
import httpx
import pytest

from broker.metrics import catalogue
from broker.resources.catalogue import build_registry
from tests.owners.support import holding
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ASKED = 12
HALF = 2  # of the four connections that the product has here
GIVES_UP_S = 20.0  # only when the test fails

# Not pg_stat_activity, which stays as it is within a transaction.
_LOCKED = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE datname = current_database() AND NOT granted
"""

# Of each operation its path, and a table that its query reads.
LISTS = {
    "getProgramEvents": ("/programs/listed/events", "events"),
    "filterProgramEvents": ("/programs/listed/events/filter", "events"),
    "exportProgramEvents": ("/programs/listed/events/export", "events"),
    "getProducerPrograms": ("/programs", "programs"),
    "filterPrograms": ("/programs/filter", "programs"),
    "listProjects": ("/projects", "projects"),
    "listProjectUsers": ("/projects/own/users", "projects"),
    "listProjectPrograms": ("/projects/own/programs", "programs"),
    "listRevisions": ("/projects/own/application/revisions", "revisions"),
    "getDashboard": ("/statistics/dashboard", "programs"),
    "filterStatistics": ("/statistics/filtered", "statistics"),
    "filterImageStatistics": ("/statistics/images", "statistics"),
    "admin/getLivePrograms": ("/statistics/livePrograms", "programs"),
    "listUsers": ("/users", "users"),
    "listApiTokens": ("/users/me/tokens", "api_tokens"),
    "filterAudit": ("/audit", "audit"),
    "getResponseReport": ("/responses/demo/own/listed/report", "answer_polls"),
    "getResponseIntegrity": ("/responses/demo/own/listed/integrity", "answer_polls"),
}
# Live results take a turn only where they are not remembered; the names of roles are not read.
RESULTS = ("/responses/demo/m{number}/results", "answer_polls")
OTHERS = {"getResponseResults", "listRoles"}


@pytest.fixture(scope="module", autouse=True)
async def listed(product: Product) -> None:
    async with product.door() as door:
        answer = await door.post("/projects", json={"id": "own", "name": "P"})
        assert answer.status_code == 201, answer.text
    await product.make_program("listed", projectId="own")
    await product.publish("listed", {"event": "A#b"})


def locked(dsn: str, table: str) -> AbstractAsyncContextManager[asyncpg.Connection]:
    """Nobody else reads a table meanwhile."""
    return holding(dsn, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def queued(product: Product) -> int:
    """How many wait for a turn, or for a connection."""
    services = product.services
    return sum(
        int(sample.value)
        for figures in (services.database.figures(), services.lists.figures())
        for sample in figures
        if sample.name == catalogue.QUEUE.name
    )


@pytest.mark.parametrize(("path", "table"), [*LISTS.values(), RESULTS], ids=[*LISTS, "getResponseResults"])
async def test_lists_leave_half_of_the_connections(
    product: Product, module_dsn: str, path: str, table: str
) -> None:
    async def read(number: int) -> httpx.Response:
        async with product.door() as door:
            return await door.get(path.format(number=number))

    assert (await read(ASKED)).status_code == 200
    async with locked(module_dsn, table) as witness:
        reading = [asyncio.create_task(read(number)) for number in range(ASKED)]
        async with asyncio.timeout(GIVES_UP_S):
            while await witness.fetchval(_LOCKED) + queued(product) < ASKED:
                assert not any(task.done() for task in reading), "no request ends while the table is locked"
        assert await witness.fetchval(_LOCKED) <= HALF
        assert await product.services.database.fetchval("SELECT 1") == 1
    assert [answer.status_code for answer in await asyncio.gather(*reading)] == [200] * ASKED
    assert queued(product) == 0


def test_every_operation_that_lists_takes_turns() -> None:
    operations = build_registry().operations
    listing = {
        operation.name
        for operation in operations
        if str(operation.result).startswith("list[")
        or {"total", "series", "exported_time"} & getattr(operation.result, "model_fields", {}).keys()
    }
    taking = {operation.name for operation in operations if operation.is_list}
    assert listing - OTHERS <= taking
    assert taking == set(LISTS)
