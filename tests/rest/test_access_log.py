"""The access log gathers lines for a moment, within bounds."""

import asyncio
import json
import logging

import pytest

from broker.clock import SystemClock
from broker.rest.access_log import NAME, AccessLog, LoggedRequest

pytestmark = pytest.mark.anyio


def answered(path: str = "/api/v1/users", host: str = "localhost") -> LoggedRequest:
    return LoggedRequest(1_700_000_000_123, "id-1", "192.0.2.1", "GET", host, path, 200, 0.0012345678, 42)


def written(caplog: pytest.LogCaptureFixture) -> list[list[dict[str, object]]]:
    """The lines of each write."""
    return [[json.loads(line) for line in record.getMessage().splitlines()] for record in caplog.records]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)


async def test_lines_of_one_moment_are_one_write(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(SystemClock())
    log.add(answered("/a"))
    log.add(answered("/b")._replace(trace_id="t" * 32))
    assert written(caplog) == []
    await asyncio.sleep(0.3)
    [[first, second]] = written(caplog)
    assert (first["path"], first["time"], first["durationS"]) == ("/a", "2023-11-14T22:13:20.123Z", 0.001235)
    assert "traceId" not in first
    assert (second["path"], second["traceId"]) == ("/b", "t" * 32)


async def test_no_more_than_a_thousand_lines_are_gathered(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(SystemClock())
    for _ in range(2_500):
        log.add(answered())
    assert [len(lines) for lines in written(caplog)] == [1_000, 1_000]
    log.flush()
    assert [len(lines) for lines in written(caplog)] == [1_000, 1_000, 500]


@pytest.mark.parametrize("line", [answered(path="/" + "a" * 9_999), answered(host="a" * 9_988)])
async def test_lines_that_strangers_make_long_are_gathered_up_to_a_size(
    caplog: pytest.LogCaptureFixture, line: LoggedRequest
) -> None:
    log = AccessLog(SystemClock())
    for _ in range(25):
        log.add(line)
    first, second = written(caplog)
    assert (len(first), len(second)) == (10, 10)
    assert (first[0]["path"], first[0]["host"]) == (line.path, line.host)


@pytest.mark.parametrize("path", ['/"\\\n\x00', "/\ufffd\U0001f600", "/ä%2F"])
async def test_each_path_is_one_line(caplog: pytest.LogCaptureFixture, path: str) -> None:
    log = AccessLog(SystemClock())
    log.add(answered(path))
    log.flush()
    assert [line["path"] for [line] in written(caplog)] == [path]
