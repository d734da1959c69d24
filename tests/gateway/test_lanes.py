import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError
from broker.gateway.lanes import LaneLimits, Lanes
from broker.gateway.upcalls import OperationCall

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are never finished need not be waited for."""
    monkeypatch.setattr("broker.gateway.lanes._CLOSE_S", 0.05)


def make_call(conn: int, ticket: int, params: bytes = b"{}", method: str = "producer") -> OperationCall:
    return OperationCall(conn, ticket, "demo", 0, "127.0.0.1", method, params, False)


class Recorder:
    """Runs calls until they are released; notes what happened in which order."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.refused: list[tuple[int, str]] = []
        self.ordered: dict[int, Callable[[], None]] = {}
        self.gates: dict[int, asyncio.Event] = {}

    async def run(self, call: OperationCall, ordered: Callable[[], None]) -> None:
        self.begun.append((call.conn, call.ticket))
        self.ordered[call.ticket] = ordered
        await self.gates.setdefault(call.ticket, asyncio.Event()).wait()

    def refuse(self, call: OperationCall, error: BrokerError) -> None:
        self.refused.append((call.ticket, error.name))

    async def finish(self, ticket: int) -> None:
        self.gates.setdefault(ticket, asyncio.Event()).set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_next_call_of_a_connection_waits_for_the_first() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse)
    lanes.submit(make_call(1, 1))
    lanes.submit(make_call(1, 2))
    await settle()
    assert recorder.begun == [(1, 1)]
    await recorder.finish(1)
    assert recorder.begun == [(1, 1), (1, 2)]
    await lanes.close()


async def test_next_call_begins_once_the_first_is_ordered() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse)
    lanes.submit(make_call(1, 1))
    lanes.submit(make_call(1, 2))
    lanes.submit(make_call(1, 3))
    await settle()
    recorder.ordered[1]()
    recorder.ordered[1]()  # saying it twice lets one call through, not two
    await settle()
    assert recorder.begun == [(1, 1), (1, 2)]
    await lanes.close()


async def test_call_of_another_method_waits_for_all_before_it() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse)
    for ticket, method in ((1, "producer"), (2, "producer"), (3, "getProgramEvents"), (4, "producer")):
        lanes.submit(make_call(1, ticket, method=method))
    await settle()
    recorder.ordered[1]()
    await settle()
    recorder.ordered[2]()
    await settle()
    await recorder.finish(1)
    assert recorder.begun == [(1, 1), (1, 2)]
    await recorder.finish(2)
    assert recorder.begun == [(1, 1), (1, 2), (1, 3)]
    await recorder.finish(3)
    assert recorder.begun[3:] == [(1, 4)]
    await lanes.close()


async def test_connections_run_at_once() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse)
    lanes.submit(make_call(1, 1))
    lanes.submit(make_call(2, 2))
    await settle()
    assert recorder.begun == [(1, 1), (2, 2)]
    await lanes.close()


async def test_connections_take_turns_at_the_bound() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse, LaneLimits(running=1))
    for ticket in (1, 2, 3):
        lanes.submit(make_call(1, ticket))
    lanes.submit(make_call(2, 4))
    await settle()
    assert lanes.running == 1
    for ticket in (1, 4, 2, 3):
        await recorder.finish(ticket)
    assert recorder.begun == [(1, 1), (2, 4), (1, 2), (1, 3)]
    await lanes.close()


async def test_calls_of_one_connection_in_flight_are_bounded() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse, LaneLimits(running_per_connection=2))
    for ticket in (1, 2, 3):
        lanes.submit(make_call(1, ticket))
    await settle()
    recorder.ordered[1]()
    await settle()
    recorder.ordered[2]()
    await settle()
    assert recorder.begun == [(1, 1), (1, 2)]
    await recorder.finish(1)
    assert recorder.begun == [(1, 1), (1, 2), (1, 3)]
    await lanes.close()


async def test_connection_with_too_many_waiting_is_slowed_alone() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse, LaneLimits(running=1, waiting_per_connection=2))
    for ticket in range(1, 5):  # one runs, two wait, one is too many
        lanes.submit(make_call(1, ticket))
    lanes.submit(make_call(2, 9))
    assert recorder.refused == [(4, "slow_down")]
    assert lanes.waiting == 3
    await lanes.close()


async def test_connection_with_too_many_bytes_waiting_is_slowed() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse, LaneLimits(running=1, waiting_bytes_per_connection=10))
    lanes.submit(make_call(1, 1, b"x" * 10, ""))
    lanes.submit(make_call(1, 2, b"x" * 5, ""))
    lanes.submit(make_call(1, 3, b"x" * 2, "yyy"))
    lanes.submit(make_call(1, 4, b"x", ""))
    lanes.submit(make_call(1, 5, b"", "y"))
    assert recorder.refused == [(4, "slow_down"), (5, "slow_down")]
    await lanes.close()


async def test_full_gateway_serves_those_with_nothing_waiting() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse, LaneLimits(running=1, waiting=2))
    for ticket in (1, 2, 3, 4):
        lanes.submit(make_call(1, ticket))
    lanes.submit(make_call(2, 5))
    lanes.submit(make_call(2, 6))
    lanes.submit(make_call(3, 7))
    lanes.submit(make_call(4, 8))
    assert recorder.refused == [(4, "unavailable"), (6, "unavailable"), (8, "unavailable")]
    await lanes.close()


async def test_failing_call_lets_the_next_one_run() -> None:
    begun = []

    async def run(call: OperationCall, ordered: Callable[[], None]) -> None:
        begun.append(call.ticket)
        raise RuntimeError("a bug")

    lanes = Lanes(run, Recorder().refuse)
    lanes.submit(make_call(1, 1))
    lanes.submit(make_call(1, 2))
    await settle()
    assert begun == [1, 2]
    await lanes.close()


async def test_close_cancels_what_runs_and_refuses_what_comes() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, recorder.refuse)
    lanes.submit(make_call(1, 1))
    lanes.submit(make_call(1, 2))
    await settle()
    await lanes.close()
    lanes.submit(make_call(1, 3))
    assert lanes.running == 0
    assert recorder.begun == [(1, 1)]
    assert recorder.refused == [(2, "unavailable"), (3, "unavailable")]


@given(
    calls=st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 3)), max_size=40),
    running=st.integers(1, 5),
)
def test_calls_of_each_connection_begin_in_order(calls: list[tuple[int, bool, int]], running: int) -> None:
    begun: dict[int, list[int]] = {}
    at_once: list[int] = []

    async def run(call: OperationCall, ordered: Callable[[], None]) -> None:
        _, says_ordered, turns = calls[call.ticket]
        begun.setdefault(call.conn, []).append(call.ticket)
        at_once.append(lanes.running)
        if says_ordered:
            ordered()
        for _ in range(turns):
            await asyncio.sleep(0)

    async def main() -> None:
        for ticket, (conn, _, _) in enumerate(calls):
            lanes.submit(make_call(conn, ticket))
        for _ in range(5 * len(calls) + 5):
            await asyncio.sleep(0)
        await lanes.close()

    lanes = Lanes(run, Recorder().refuse, LaneLimits(running=running))
    asyncio.run(main())
    expected: dict[int, list[int]] = {}
    for ticket, (conn, _, _) in enumerate(calls):
        expected.setdefault(conn, []).append(ticket)
    assert begun == expected
    assert max(at_once, default=0) <= running
