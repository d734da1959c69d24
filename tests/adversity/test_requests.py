"""An API replica dies or hangs with requests under way: what callers are told is true, and others go on.

A request is held by a lock in the database that it waits for, so it is under way for certain when its replica
is hit.
"""

import asyncio
import csv
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import asyncpg
import httpx
import psutil
import pytest

from broker.owners.placement import owner_of
from broker.owners.protocol import program_topic
from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity.faults import TITLES, find, hit
from tests.deployments.haproxy_servers import list_replicas
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

OWNERS = 2
REPLICAS = 2
REPLICA = "ray::ServeReplica:broker:Api"
_LOOK_S = 0.05
_TRY_S = 1.0  # of a request that may be with a replica that hangs
_PATIENCE_S = 120.0
_SETTLED_S = 5.0
_HOLD_PROGRAM = (
    "SELECT FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.id = $1 FOR UPDATE"
)
_HOLD_REVISIONS = "LOCK TABLE revisions IN ACCESS EXCLUSIVE MODE"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_callers_of_a_replica_that_is_gone_are_told_the_truth(
    instance: Instance, number: signal.Signals
) -> None:
    held, free = _programs()
    await _until_whole(instance)
    api = f"{instance.url}/api/v1"
    async with (
        httpx.AsyncClient(base_url=api, headers=instance.token(), timeout=_PATIENCE_S) as caller,
        httpx.AsyncClient(base_url=api, headers=instance.token(), timeout=_TRY_S) as other,
        asyncio.TaskGroup() as group,
    ):
        for name in (held, free):
            (await caller.post("/programs", json={"id": name, "name": name})).raise_for_status()
        (await caller.post("/projects", json={"id": held, "name": held})).raise_for_status()
        keys = {"Idempotency-Key": secrets.token_hex(8)}
        event = {"event": "Score#update", "metadata": {"home": 1}}
        async with _holding(instance, held) as waiting:
            changing = group.create_task(caller.post(f"/programs/{held}/events", json=event, headers=keys))
            reading = group.create_task(caller.get(f"/projects/{held}/application/revisions"))
            while await waiting() < 2:
                assert not changing.done(), changing.result().text
                assert not reading.done(), reading.result().text
                await asyncio.sleep(_LOOK_S)
            (victim,) = await asyncio.to_thread(_busy_replicas, instance)
            hit([victim], number)
        # What the owner waited for is there now: it publishes, and has nobody to say so to.
        await _publish_on(other, free)
        if number == signal.SIGSTOP:
            # Its own callers wait, or the ingress has given it up and told them; what, is asserted below.
            assert victim.status() == psutil.STATUS_STOPPED, "others go on before it is exchanged"
            victim.kill()  # as Serve does after some more seconds
        _assert_told(await changing, "outcome_unknown")
        _assert_told(await reading, "unavailable")
        await _publish_on(other, free)
        repeated = await _until_taken(other, f"/programs/{held}/events", event, keys)
        stored = (await other.get(f"/programs/{held}/events")).raise_for_status().json()
        assert [each["id"] for each in stored] == [repeated["id"]], "what was told as unknown was done once"
        assert repeated["seq"] == 1


def _programs() -> tuple[str, str]:
    """Names of two programs, of the first owner and of another one."""
    names = [f"told-{secrets.token_hex(4)}-{number}" for number, _ in zip(count(), range(64), strict=False)]
    owners = {owner_of(program_topic("demo", name), OWNERS): name for name in names}
    return owners[0], owners[1]


@asynccontextmanager
async def _holding(instance: Instance, program_id: str) -> AsyncIterator["_Waiting"]:
    """Changes of the program and readers of revisions wait; gives what counts those who do."""
    dsn = instance.database_url or EmbeddedPostgres(instance.data_dir / "postgres").dsn
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(_HOLD_REVISIONS)
            await connection.execute(_HOLD_PROGRAM, program_id)
            yield _Waiting(connection)
    finally:
        await connection.close()


class _Waiting:
    """Counts the connections that wait for this one."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def __call__(self) -> int:
        return int(await self._connection.fetchval(_WAITING))


def _busy_replicas(instance: Instance) -> list[psutil.Process]:
    """The replicas of the API that HAProxy awaits a response of."""
    ports = {int(row["port"]) for row in _servers(instance) if row["scur"] != "0"}
    return [
        process
        for process in find(instance, REPLICA)
        if ports & {each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"}
    ]


def _servers(instance: Instance) -> list[dict[str, str]]:
    """What HAProxy says of each replica of the API, in each of its backends, with the replica's `port`."""
    assert instance.scratch is not None
    (configuration,) = instance.scratch.glob("**/haproxy.cfg")
    replicas = list_replicas(configuration.read_text())
    ports = {name: str(port) for name, (_, port) in replicas.items()}
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(configuration.parent / "admin"))
        peer.sendall(b"show stat\n")
        told = b"".join(iter(lambda: peer.recv(65_536), b"")).decode()
    rows = csv.DictReader(told.removeprefix("# ").splitlines())
    return [row | {"port": ports[row["svname"]]} for row in rows if row["svname"] in ports]


async def _publish_on(client: httpx.AsyncClient, program_id: str) -> None:
    keys = {"Idempotency-Key": secrets.token_hex(8)}
    await _until_taken(client, f"/programs/{program_id}/events", {"event": "Clock#tick"}, keys)


async def _until_taken(
    client: httpx.AsyncClient, path: str, body: dict[str, object], headers: dict[str, str]
) -> dict[str, object]:
    """Send as clients do: what is not known to be done is repeated under its key."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with suppress(httpx.TimeoutException):
                reply = await client.post(path, json=body, headers=headers)
                if reply.is_success:
                    return dict(reply.json())
                _assert_told(reply, "unavailable", "outcome_unknown")
            await asyncio.sleep(_LOOK_S)


def _assert_told(reply: httpx.Response, *errors: str) -> None:
    assert reply.status_code == 503, reply.text
    assert reply.json()["error"] in errors
    assert reply.json()["status"] == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["x-request-id"]


async def _until_whole(instance: Instance) -> None:
    """Until HAProxy knows two replicas: one takes all, the other one is its spare.

    And until its last change is some seconds old, as after the faults of other tests: requests stay with the
    process that took them, of which the one that follows tells nothing.
    """
    since_s = time.monotonic()
    before: tuple[object, ...] | None = None
    async with asyncio.timeout(_PATIENCE_S):
        while before is None or time.monotonic() - since_s < _SETTLED_S:
            processes = [each.pid for each in await asyncio.to_thread(find, instance, TITLES["ingress"])]
            rows = await asyncio.to_thread(_servers, instance) if len(processes) == 1 else []
            up = {row["port"] for row in rows if row["status"].startswith("UP")}
            now = (*processes, *sorted(up)) if len(up) == REPLICAS else None
            if now is None or now != before:
                since_s, before = time.monotonic(), now
            await asyncio.sleep(_LOOK_S)
