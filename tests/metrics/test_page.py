"""The page of a node: real exporters, real sockets, processes that hang and that were killed."""

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker._native import DELAY_BOUNDS_US
from broker.clock import SystemClock
from broker.metrics import catalogue, page
from broker.metrics.counts import Count, Durations, Sample
from broker.metrics.exporter import DIRECTORY, Exporter

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
CLOCK = SystemClock()
_PLACE = ("node", "pid")


def values(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """Samples of one name, by the values of their labels without the number of the process."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label not in _PLACE): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name
    }


def figures() -> Iterator[Sample]:
    yield Sample(catalogue.QUEUE.name, ("writer",), 7)


async def test_every_process_is_on_the_page(tmp_path: Path) -> None:
    exporters = [
        Exporter("owner", "owner-0", tmp_path, CLOCK, [figures]),
        Exporter("api", "api", tmp_path, CLOCK),
    ]
    for each in exporters:
        await each.start()
    text = await page.read_page(tmp_path, CLOCK)
    assert values(text, "broker_process_up") == {("api",): 1, ("owner",): 1}
    assert values(text, "broker_queue_length") == {("owner", "writer"): 7}
    assert f'pid="{os.getpid()}"' in text.decode()
    assert 0 <= values(text, "broker_event_loop_lag_seconds")["api",] < 2
    for each in exporters:
        await each.close()
    assert await page.read_page(tmp_path, CLOCK) == b""


async def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    data_dir = tmp_path / ("x" * 100) / ("y" * 100)
    exporter = Exporter("api", "api", data_dir, CLOCK)
    await exporter.start()
    assert values(await page.read_page(data_dir, CLOCK), "broker_process_up") == {("api",): 1}
    await exporter.close()


async def test_a_process_that_hangs_is_not_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_ANSWER_S", 0.05)
    exporter = Exporter("api", "api", tmp_path, CLOCK)
    await exporter.start()
    with socket.socket(socket.AF_UNIX) as hanging:
        monkeypatch.chdir(tmp_path / DIRECTORY)
        hanging.bind("owner.4711")
        hanging.listen()
        text = await page.read_page(tmp_path, CLOCK)
    assert values(text, "broker_process_up") == {("api",): 1, ("owner",): 0}
    await exporter.close()


async def test_a_process_that_was_killed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DIRECTORY).mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        monkeypatch.chdir(tmp_path / DIRECTORY)
        killed.bind("owner.4711")
    assert await page.read_page(tmp_path, CLOCK) == b""
    assert not list((tmp_path / DIRECTORY).iterdir())


async def test_only_the_products_user_may_ask(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir(mode=0o777)
    exporter = Exporter("api", "api", tmp_path, CLOCK)
    await exporter.start()
    assert (tmp_path / DIRECTORY).stat().st_mode & 0o777 == 0o700
    await exporter.close()


async def test_a_directory_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / DIRECTORY).mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    await Exporter("api", "api", tmp_path, CLOCK).start()
    assert [record.message for record in caplog.records] == ["metrics_not_exported"]
    assert not list((tmp_path / DIRECTORY).iterdir())


async def test_figures_that_fail_do_not_hide_the_others(tmp_path: Path) -> None:
    def broken() -> Iterator[Sample]:
        raise RuntimeError("a bug")

    exporter = Exporter("owner", "owner-0", tmp_path, CLOCK, [broken, figures])
    await exporter.start()
    assert len(values(await page.read_page(tmp_path, CLOCK), "broker_queue_length")) == 1
    await exporter.close()


async def test_who_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter("api", "api", tmp_path, CLOCK)
    await exporter.start()
    monkeypatch.chdir(tmp_path / DIRECTORY)
    reader, writer = await asyncio.open_unix_connection(f"api.{os.getpid()}")
    writer.write(b"1234")  # half of what a scrape begins with
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await exporter.close()


def test_a_histogram_has_its_buckets_and_sum() -> None:
    durations = Durations(catalogue.COMMIT_SECONDS)
    for duration_s in (0.0001, 0.0005, 0.3, 100.0):
        durations.observe(duration_s, "owner-0")
    process = {"name": "owner-0", "version": "1", "lag_s": 0.0, "samples": list(durations.samples())}
    text = page.render({("owner", "1"): process})
    buckets = values(text, "broker_commit_duration_seconds_bucket")
    counted = {label: value for labels, value in buckets.items() for label in labels if label[0] in "0+"}
    assert counted["0.0005"] == 2
    assert counted["0.5"] == 3
    assert counted["+Inf"] == 4
    assert values(text, "broker_commit_duration_seconds_count").popitem()[1] == 4
    assert values(text, "broker_commit_duration_seconds_sum").popitem()[1] == pytest.approx(100.3006)


def test_a_count_adds_up_by_label() -> None:
    count = Count(catalogue.RATE_LIMITED)
    count.add("login")
    count.add("login", amount=2)
    count.add("storage")
    assert list(count.samples()) == [
        Sample("broker_rate_limited_total", ("login",), 3),
        Sample("broker_rate_limited_total", ("storage",), 1),
    ]


def test_names_follow_the_conventions() -> None:
    units = ("_seconds", "_bytes")
    for definition in catalogue.CATALOGUE:
        assert re.fullmatch(r"broker_[a-z0-9_]+", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter"), definition.name
        assert definition.kind != "histogram" or definition.name.endswith(units), definition.name
        assert not set(definition.labels) & {"account", "user", "program", *catalogue.PROCESS_LABELS}


def test_the_document_lists_every_metric_as_it_is() -> None:
    rows = re.findall(
        r"^\| `(broker_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", DOCUMENT.read_text(), re.MULTILINE
    )
    expected = [
        (each.name, each.kind, ", ".join(f"`{label}`" for label in each.labels) or "none", each.text)
        for each in catalogue.CATALOGUE
    ]
    assert rows == expected


def test_delays_have_the_buckets_that_native_code_counts() -> None:
    assert tuple(bound_us / 1e6 for bound_us in DELAY_BOUNDS_US) == catalogue.DELAY_SECONDS.buckets


def test_a_count_without_labels_is_told_before_its_first_step() -> None:
    """Prometheus sees no increase in a series that begins with 1."""
    assert list(Count(catalogue.LOSSES).samples()) == [Sample("broker_histories_lost_total", (), 0)]


async def test_the_page_says_which_parts_are_ready(tmp_path: Path) -> None:
    parts = {"database": "ok", "owners": "owner-0 does not answer"}
    text = await page.read_page(tmp_path, CLOCK, parts)
    assert values(text, "broker_ready") == {("database", "api"): 1, ("owners", "api"): 0}


async def test_a_process_tells_what_it_has_left(tmp_path: Path) -> None:
    exporter = Exporter("api", "api", tmp_path, CLOCK)
    await exporter.start()
    text = await page.read_page(tmp_path, CLOCK)
    await exporter.close()
    assert values(text, "broker_process_max_fds")["api",] > 0
    free, memory = (
        values(text, f"broker_node_memory_{name}")["api",] for name in ("available_bytes", "bytes")
    )
    assert 0 < free < memory
