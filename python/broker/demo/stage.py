"""Starts the whole product for the demonstration, as `broker up` in a process of its own, and ends it.

The child takes nothing from our environment's settings: a demonstration makes users with passwords that
everybody knows, and must never do so in a database that is in use.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.concurrency.tasks import cancel_and_wait
from broker.deployments.ports import free_port, require_free
from broker.settings import child_environment
from broker.setup_error import SetupError

ACCOUNT = "demo"
_HOST = "127.0.0.1"
_READY_S = 120.0  # the first start makes a database
_STOP_S = 20.0  # `broker up` promises 15
_NO_LIMITS = {
    # the audience votes from one address and over a few connections
    "BROKER_RESPONSES_RATE_PER_ADDRESS": "0",
    "BROKER_RESPONSES_RATE_PER_CONNECTION": "0",
}
_BROKER = "from broker.cli.main import main; main()"


class StageError(Exception):
    """The product does not start or has died; one line that says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the product runs.

    Attributes:
        url: the HTTP API of the account.
        died: done when the product ends by itself.
    """

    url: str
    http_port: int
    ws_port: int
    data_dir: Path
    died: "asyncio.Task[None]"


def choose_ports(http_port: int | None, ws_port: int | None) -> tuple[int, int]:
    """The wanted ports; where none is wanted the usual one if it is free, else any that is."""
    return http_port or _usual_or_free(8000), ws_port or _usual_or_free(8001)


@asynccontextmanager
async def open_stage(
    data_dir: Path,
    http_port: int,
    ws_port: int,
    tell: Callable[[str], None],
    settings: Mapping[str, str],
) -> AsyncIterator[Stage]:
    """Run the product; it is gone when the block ends.

    Args:
        tell: is given each line of progress.
        settings: by their names in the environment.

    Raises:
        StageError: it did not become ready.
    """
    arguments = ["--data-dir", str(data_dir), "--http-port", str(http_port), "--ws-port", str(ws_port)]
    operators = {"BROKER_OPS_PORT": str(_usual_or_free(8050))}
    log = (data_dir / "up.log").open("wb")
    with log:
        # a session of its own: Ctrl-C reaches us first, so that viewers leave before the product does
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _BROKER,
            "up",
            *arguments,
            env=child_environment(_NO_LIMITS | operators | dict(settings)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        watch: asyncio.Task[None] | None = None
        try:
            await _await_ready(child, tell, data_dir / "up.log")
            watch = asyncio.create_task(_watch(child), name="demo product")
            url = f"http://{ACCOUNT}.localhost:{http_port}"
            yield Stage(url, http_port, ws_port, data_dir, watch)
        finally:
            await _stop(child)
            await cancel_and_wait(watch)


async def _await_ready(child: asyncio.subprocess.Process, tell: Callable[[str], None], log: Path) -> None:
    assert child.stdout is not None, "it is piped above"
    try:
        async with asyncio.timeout(_READY_S):
            async for line in child.stdout:
                text = line.decode(errors="replace").rstrip()
                if text.startswith("ready"):
                    return
                tell(text)
            status = await child.wait()
    except TimeoutError:
        raise StageError(f"the product was not ready within {_READY_S:g} s; see {log}") from None
    raise StageError(f"the product ended with status {status} at its start: {_last_line(log)}")


async def _watch(child: asyncio.subprocess.Process) -> None:
    """Drain the child's output until it ends. Raises StageError then."""
    assert child.stdout is not None, "it is piped above"
    while await child.stdout.read(65536):
        pass
    raise StageError(f"the product ended with status {await child.wait()}")


async def _stop(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else f"it said nothing; see {log}"


def _usual_or_free(usual: int) -> int:
    try:
        require_free(_HOST, usual, "")
    except SetupError:
        return free_port()
    return usual
