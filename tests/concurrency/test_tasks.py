"""Long-lived tasks: what ends is started again, counted and told; and none is run in another way."""

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.concurrency import tasks
from broker.concurrency.tasks import cancel_and_wait, failing, keep_running
from broker.metrics.counts import TASK_RESTARTS

PACKAGE = Path(tasks.__file__).parent.parent

# Where a task is made in another way, and who sees to its end. A task that runs for as long as its process
# or its connection belongs to `keep_running`, unless its end ends the process or fails those who wait.
OTHERS = {
    "voting/counting/counter.py": {"start": "the process ends with it"},
    "concurrency/batch_queue.py": {"add": "it settles what waits when it ends, and the next item starts it"},
    "concurrency/batching.py": {"ask": "it answers what waits when it ends, and the next call starts it"},
    "concurrency/single_flight.py": {"begin": "one piece of work, which its callers await"},
    "deployments/conductor_process.py": {"start": "those who wait for the process await it"},
    "deployments/gateways.py": {
        "__post_init__": "the reconciler waits for it",
        "_start_while_there": "one start, which this function awaits",
        "_until_ended": "one call, which ends with this function",
    },
    "deployments/ingress_check.py": {"start_unless_refused": "one start, which this function awaits"},
    "deployments/parts.py": {"run": "the process ends with them"},
    "deployments/ray_internals/ray_cluster.py": {"until_lost": "some waits, which this function awaits"},
    "deployments/supervisor.py": {
        "run": "old log files are looked through once",
        "_run": "`broker up` ends with it",
        "_unless_stopped": "one wait, which this function awaits",
        "_first_of": "some waits, which this function awaits",
        "exchange": "one update, which this function awaits",
    },
    "gateway/lanes.py": {"_begin": "one call, which is answered whatever it ends with"},
    "images/faces/finder.py": {"start": "one loading of models, which its callers await"},
    "resources/analytics_sites.py": {"_apart": "one set-up, which its caller awaits"},
    "operations/image_warmer.py": {
        "run": "the whole is kept running",
        "warm": "some images, which this function awaits",
    },
    "resources/events.py": {"_in_order": "one publish, which its caller awaits"},
    "owners/owner.py": {"start": "the process ends with them"},
    "owners/sessions.py": {"poll": "one poll, which its caller awaits"},
    "rest/reply.py": {
        "_until_hung_up": "one request's, which ends with it",
        "ended_by_client": "one request's, which ends with it",
    },
    "actors/actor.py": {"_get": "the process ends with it"},
    "actors/link.py": {
        "_ask_again": "some calls, which this function awaits",
        "_open": "one connection and a look beside it, which this function awaits",
    },
    "actors/lost_nodes.py": {"_is_lost": "some connections, which this function awaits"},
    "deployments/leased_tasks.py": {"within": "a start and the end of the lease, which this function awaits"},
    "storage/move.py": {"_copy": "two halves of one copy, which this function awaits"},
    "rpc/listener.py": {"_begin": "one call, which is answered whatever it ends with"},
}
MAKERS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
# Programs of their own, which end with what they do.
APART = ("client", "demo", "cli")


def makers(tree: ast.AST, function: str = "") -> Iterator[str]:
    """The functions in which tasks are made."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in MAKERS:
                yield function
        yield from makers(node, inside if is_function else function)


def test_no_long_lived_task_runs_without_supervision() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in APART and (names := set(makers(ast.parse(path.read_text())))):
            found[place.as_posix()] = names
    assert found.pop("concurrency/tasks.py") == {"keep_running", "run_once"}
    assert found == {place: set(reasons) for place, reasons in OTHERS.items()}


class Moody:
    """Work that ends as often as it is told to, and then goes on."""

    def __init__(self, ends: int, error: Exception | None = None) -> None:
        self.begun = 0
        self.holds = asyncio.Event()
        self._ends = ends
        self._error = error

    async def run(self) -> None:
        self.begun += 1
        if self.begun <= self._ends:
            if self._error is not None:
                raise self._error
            return
        self.holds.set()
        await asyncio.Event().wait()


@pytest.fixture
async def kept() -> AsyncIterator[list[asyncio.Task[None]]]:
    running: list[asyncio.Task[None]] = []
    yield running
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert failing() == []


def restarts(name: str) -> float:
    counts = [sample.value for sample in TASK_RESTARTS.samples() if sample.labels == (name,)]
    return sum(count for count in counts if isinstance(count, float | int))


@pytest.mark.anyio
@pytest.mark.parametrize("error", [None, RuntimeError("broken")])
async def test_what_ends_is_started_again_and_told(
    kept: list[asyncio.Task[None]], error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    moody, before = Moody(2, error), restarts("moody")
    kept.append(keep_running("moody", moody.run))
    async with asyncio.timeout(10):
        await moody.holds.wait()
    assert (moody.begun, restarts("moody") - before, failing()) == (3, 2, ["moody"])
    assert [record.message for record in caplog.records] == ["task_ended"] * 2


@pytest.mark.anyio
async def test_what_holds_for_a_while_fails_no_more(
    kept: list[asyncio.Task[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    moody = Moody(1)
    kept.append(keep_running("moody", moody.run))
    async with asyncio.timeout(10):
        await moody.holds.wait()
    assert failing() == ["moody"]
    monkeypatch.setattr(tasks, "HEALTHY_S", 0.0)
    assert failing() == []


@pytest.mark.anyio
async def test_cancelling_ends_it() -> None:
    moody = Moody(0)
    task = keep_running("moody", moody.run)
    await moody.holds.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert moody.begun == 1


@pytest.mark.anyio
async def test_what_nobody_awaits_says_why_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.wait([tasks.run_once("once", Moody(1, RuntimeError("broken")).run())])
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["task_failed"]


@pytest.mark.anyio
async def test_cancelled_tasks_have_ended_when_the_wait_returns() -> None:
    left: list[str] = []

    async def work(name: str, error: Exception | None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # an end that takes a turn
            left.append(name)
            if error is not None:
                raise error

    tasks = [
        asyncio.create_task(work("good", None)),
        asyncio.create_task(work("bad", RuntimeError("broken"))),
    ]
    await asyncio.sleep(0)
    await cancel_and_wait(*tasks, None)
    assert sorted(left) == ["bad", "good"]
    await cancel_and_wait(*tasks)  # again, and there is nothing to do
