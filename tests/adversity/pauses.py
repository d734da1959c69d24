"""For how long nothing goes when one process dies or hangs: `python -m tests.adversity.pauses`.

One producer publishes over HTTP every 20 ms, one visitor answers a poll as often, and one viewer follows over
WebSocket; each tries again after 20 ms. Prints, for each fault, the median and the worst of the longest times
without an acknowledged publish, without an acknowledged answer, and without an event for the viewer.

Two kinds are no faults. `scaling`: the owners become 4 and 1 again, while this is played on eight programs at
a time; the figures are those of the worst program. `reload`: `broker reload`, which exchanges all parts.
"""

import argparse
import asyncio
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.adversity.faults import COUNTER, RAY_TITLES, TITLES, find, hit
from tests.deployments.instance import Instance

CONDUCTOR = TITLES["Ray with everything on it"]
KINDS = TITLES | {"counter": COUNTER} | RAY_TITLES
SCALING = "scaling"
RELOAD = "reload"
_SCALES = (4, 1)
_PROGRAMS = 8  # at a time while the owners are scaled
_PAUSE_S = 0.02
_TRY_S = 15.0
_BEFORE_S = 1.0
_AFTER_S = 3.0  # of flow, before a window may end
_WHOLE_S = 120.0


class Flow:
    """One producer, one visitor and one viewer, with the times of what each was told."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._program_id = f"pauses-{secrets.token_hex(4)}"
        self._headers = instance.token()
        self._context = ""
        self.published_s: list[float] = []
        self.answered_s: list[float] = []
        self.told_s: list[float] = []

    async def run(self) -> None:
        """Play until cancelled."""
        url = f"{self._instance.url}/api/v1"
        async with httpx.AsyncClient(base_url=url, headers=self._headers, timeout=_TRY_S) as client:
            program = {"id": self._program_id, "name": self._program_id, "metadata": {"freeContexts": True}}
            (await client.post("/programs", json=program)).raise_for_status()
            poll = {"event": "Poll#open", "metadata": {"title": "Who wins", "options": ["Home", "Away"]}}
            path = f"/programs/{self._program_id}/events"
            reply = (await client.post(path, json=poll)).raise_for_status()
            self._context = reply.json()["id"]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(client))
                group.create_task(self._answer(client))
                group.create_task(self._follow(client))

    def pauses_s(self, since_s: float) -> tuple[float, float, float]:
        """The longest pauses since a time, of publishing, answering and following."""
        logs = self.published_s, self.answered_s, self.told_s
        return tuple(_longest_s(log, since_s) for log in logs)  # type: ignore[return-value]  # three of three

    async def _publish(self, client: httpx.AsyncClient) -> None:
        while True:
            headers = {"Idempotency-Key": secrets.token_hex(8)}
            body = {"event": "Count#up", "metadata": {}}
            await self._insist(client, f"/programs/{self._program_id}/events", body, headers)
            self.published_s.append(time.monotonic())
            await asyncio.sleep(_PAUSE_S)

    async def _answer(self, client: httpx.AsyncClient) -> None:
        path = f"/responses/demo/undefined/{self._program_id}"
        while True:
            entry = {"measureName": "whoWins", "contextId": self._context, "measureValue": 1}
            body = {"responses": [entry | {"visitorId": secrets.token_hex(8)}]}
            await self._insist(client, path, body, {})
            self.answered_s.append(time.monotonic())
            await asyncio.sleep(_PAUSE_S)

    async def _insist(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> None:
        while True:
            try:
                if (await client.post(path, json=body, headers=headers)).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self, client: httpx.AsyncClient) -> None:
        """Follow as viewers do: a connection that ends is made again, by the cursor."""
        del client
        url = f"ws://127.0.0.1:{self._instance.ws_port}/api/v1/ws"
        since: dict[str, Any] | None = None
        while True:
            try:
                async with asyncio.timeout(5):
                    socket = await connect(url, proxy=None, compression=None)
                async with socket:
                    params = {"programId": self._program_id} | ({"since": since} if since else {})
                    call = {"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": params}
                    await socket.send(orjson.dumps(call), text=True)
                    async for message in socket:
                        since = self._heard(orjson.loads(message), since)
            except (OSError, TimeoutError, WebSocketException):
                pass
            await asyncio.sleep(_PAUSE_S)

    def _heard(self, message: dict[str, Any], since: dict[str, Any] | None) -> dict[str, Any] | None:
        if message.get("method") == "event":
            news = message["params"]
        elif "result" in message:
            news = message["result"]
        else:
            return since
        if message.get("method") or news.get("events"):
            self.told_s.append(time.monotonic())
        return {"epoch": news["epoch"], "seq": news["seq"]}


def main() -> int:
    """Do it; returns the exit status."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="broker-pauses-") as directory:
        environment = {"BROKER_RESPONSES_RATE_PER_ADDRESS": "0", "BROKER_OWNERS": "1"}
        instance = Instance(Path(directory) / "data", environment=environment)
        try:
            instance.start()
            _print_row(["what", "times", "nothing published", "nothing answered", "nothing delivered"])
            _print_row(["---"] * 5)
            for kind in options.kinds:
                if kind == SCALING:
                    asyncio.run(_measure_scaling(instance, options.times))
                    continue
                if kind == RELOAD:
                    asyncio.run(_measure_reload(instance, options.times))
                    continue
                asyncio.run(_measure(instance, kind, options.times, signal.SIGSTOP if options.hang else 9))
        finally:
            instance.end()
    return 0


async def _measure(instance: Instance, kind: str, times: int, number: int) -> None:
    flow = Flow(instance)
    playing = asyncio.create_task(flow.run())
    rows = []
    try:
        await _until_whole(instance, kind)
        whole = len(find(instance, KINDS[kind]))
        for _ in range(times):
            await _until_whole(instance, kind, fewest=whole)
            await asyncio.sleep(_BEFORE_S)
            victims = find(instance, KINDS[kind])
            assert victims, f"no process of {kind}"
            since_s = time.monotonic()
            hit(victims[:1], signal.Signals(number))
            await _until_whole(instance, kind, fewest=whole, other_than=victims[0])
            await asyncio.sleep(_AFTER_S)
            assert not playing.done(), playing.result()
            rows.append(flow.pauses_s(since_s))
            print([round(each, 2) for each in rows[-1]], file=sys.stderr, flush=True)  # noqa: T201
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    title = f"{kind} hangs" if number == signal.SIGSTOP else kind
    _print_row([title, str(times), *_summarize(rows)])


async def _measure_scaling(instance: Instance, times: int) -> None:
    flows = [Flow(instance) for _ in range(_PROGRAMS)]
    playing = [asyncio.create_task(flow.run()) for flow in flows]
    rows: dict[int, list[Sequence[float]]] = {owners: [] for owners in _SCALES}
    try:
        for _ in range(times):
            for owners in _SCALES:
                await asyncio.sleep(_AFTER_S)
                since_s = time.monotonic()
                await _run_command(instance, "scale", f"owners={owners}")
                await asyncio.sleep(_AFTER_S)
                assert [each for each in playing if each.done()] == []
                pauses = (flow.pauses_s(since_s) for flow in flows)
                rows[owners].append([max(each) for each in zip(*pauses, strict=True)])
                print(owners, [round(one, 2) for one in rows[owners][-1]], file=sys.stderr)  # noqa: T201
    finally:
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    for owners, measured in rows.items():
        _print_row([f"owners become {owners}", str(times), *_summarize(measured)])


async def _measure_reload(instance: Instance, times: int) -> None:
    flow = Flow(instance)
    playing = asyncio.create_task(flow.run())
    rows = []
    try:
        for _ in range(times):
            await asyncio.sleep(_AFTER_S)
            since_s = time.monotonic()
            await _run_command(instance, "reload")
            took_s = time.monotonic() - since_s
            await asyncio.sleep(_AFTER_S)
            assert not playing.done(), playing.result()
            rows.append(flow.pauses_s(since_s))
            print([round(each, 2) for each in (took_s, *rows[-1])], file=sys.stderr, flush=True)  # noqa: T201
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    _print_row([RELOAD, str(times), *_summarize(rows)])


async def _run_command(instance: Instance, *words: str) -> None:
    """Run `broker` with these words on an instance; it must succeed."""
    code = "from broker.cli.main import main; main()"
    command = [sys.executable, "-c", code, *words, "--data-dir", str(instance.data_dir)]
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await running.wait() == 0


def _summarize(rows: Sequence[Sequence[float]]) -> list[str]:
    """Median and worst of each column."""
    return [f"{statistics.median(each):.2f} s, {max(each):.2f} s" for each in zip(*rows, strict=True)]


async def _until_whole(
    instance: Instance, kind: str, *, fewest: int = 1, other_than: psutil.Process | None = None
) -> None:
    """Wait until all parts answer and as many processes of the kind run, without the one that was hit."""
    async with httpx.AsyncClient(timeout=5) as client, asyncio.timeout(_WHOLE_S):
        while True:
            try:
                ready = (await client.get(f"{instance.ops_url}/readyz")).is_success
            except httpx.TransportError:
                ready = False
            is_there = sum(each != other_than for each in find(instance, KINDS[kind])) >= fewest
            # While another Ray takes over, there are two conductors.
            if ready and is_there and len(find(instance, CONDUCTOR)) == 1 and _has_one_ray(instance):
                return
            await asyncio.sleep(0.2)


def _has_one_ray(instance: Instance) -> bool:
    return all(len(find(instance, title)) == 1 for title in RAY_TITLES.values())


def _longest_s(log: Sequence[float], since_s: float) -> float:
    times = [each for each in log if each >= since_s]
    before = [each for each in log if each < since_s][-1:]
    return max((later - earlier for earlier, later in pairwise([*before, *times])), default=0.0)


def _print_row(columns: Sequence[str]) -> None:
    print("| " + " | ".join(columns) + " |", flush=True)  # noqa: T201


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*KINDS, SCALING, RELOAD], metavar="KIND")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--hang", action="store_true", help="stop the process instead of killing it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
