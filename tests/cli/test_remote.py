"""Commands that speak to a broker, against the real HTTP door, and the ends of `broker tail` as a process."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from broker.cli.main import run
from broker.cli.remote import Remote, noticed
from broker.cli.results import _declared_first, render
from broker.client import Answer, AsyncClient, ReportEntry, ReportImpressions, ReportOption
from broker.deployments.ports import free_port
from tests.auth.services import PASSWORD
from tests.client.test_product import product, url  # noqa: F401 - fixtures
from tests.client.test_subscription import Line, gateway

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SCRIPT = "from broker.cli.main import main; main()"


@pytest.fixture
async def options(url: str) -> list[str]:  # noqa: F811 - the fixture
    return ["--url", url, "--username", "admin", "--password", PASSWORD]


async def _run(*arguments: str) -> int:
    return await asyncio.to_thread(run, [*arguments])


async def test_events_are_published_exported_and_imported(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with AsyncClient(options[1], username="admin", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
    assert await _run("publish", "final", "A#b", "--metadata", '{"n": 1}', "--json", *options) == 0
    published = orjson.loads(capsys.readouterr().out)
    assert (published["seq"], published["programId"], published["metadata"]) == (1, "final", {"n": 1})
    assert await _run("publish", "final", "C#d", *options) == 0
    assert capsys.readouterr().out.startswith("2 C#d ")

    document, lines = tmp_path / "a.json", tmp_path / "a.ndjson"
    assert await _run("export", "final", str(document), *options) == 0
    assert await _run("export", "final", str(lines), "--ndjson", *options) == 0
    assert len(orjson.loads(document.read_bytes())["events"]) == len(lines.read_bytes().splitlines()) == 2
    assert await _run("import", "final", str(document), *options) == 0
    assert capsys.readouterr().out == "2 events imported, 2 deleted\n"
    assert await _run("import", "final", str(lines), "--json", *options) == 0
    assert orjson.loads(capsys.readouterr().out)["imported"] == 2


async def test_failed_export_leaves_no_file(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _run("export", "unknown", str(tmp_path / "a.json"), *options) == 1
    assert await asyncio.to_thread(lambda: [*tmp_path.iterdir()]) == []
    assert capsys.readouterr().err.startswith("error: 404 not_found")


@pytest.mark.parametrize("content", [b"", b"\n \r\n"])
async def test_file_of_lines_without_an_event_deletes_nothing(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    empty, none = tmp_path / "empty.ndjson", tmp_path / "none.json"
    empty.write_bytes(content)
    none.write_bytes(b'{"events": []}')
    async with AsyncClient(options[1], username="admin", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
        await client.publish("final", "A#b")
    assert await _run("import", "final", str(empty), *options) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {empty} has no event")
    assert error.count("\n") == 1
    assert await _run("import", "final", str(none), *options) == 0
    assert capsys.readouterr().out == "0 events imported, 1 deleted\n"


async def test_export_follows_links_and_writes_to_a_fifo(options: list[str], tmp_path: Path) -> None:
    async with AsyncClient(options[1], username="admin", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
    link, fifo = tmp_path / "link.json", tmp_path / "fifo"
    link.symlink_to("a.json")
    os.mkfifo(fifo)
    assert await _run("export", "final", str(link), *options) == 0
    reading = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))
    assert await _run("export", "final", str(fifo), *options) == 0
    assert link.is_symlink()
    for written in (await reading, (tmp_path / "a.json").read_bytes()):
        assert orjson.loads(written)["events"] == []


async def _tail(url: str, *arguments: str) -> asyncio.subprocess.Process:  # noqa: F811
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        "tail",
        "final",
        "--url",
        url,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def _following(broker: str) -> bytes:
    return f"following final at {broker}; Ctrl-C ends it\n".encode()


async def _show(line: Line) -> None:
    await line.accept(0)
    await line.push(1, 2)
    await line.connection.wait_closed()


async def test_tail_writes_each_event_as_it_comes_and_ends_by_itself() -> None:
    async with gateway(_show) as scripted:
        process = await _tail(scripted.url, "--count", "2", "--json")
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, _following(scripted.url))
    assert [orjson.loads(text)["seq"] for text in out.splitlines()] == [1, 2]


async def test_interrupted_tail_ends_quietly_with_130() -> None:
    async with gateway(_show) as scripted:
        process = await _tail(scripted.url)
        assert process.stdout is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert err.startswith(_following(scripted.url))


async def test_tail_without_a_broker_says_so_and_goes_on_until_there_is_one() -> None:
    port = free_port()
    broker = f"http://demo.localhost:{port}"
    process = await _tail(broker, "--count", "2")
    assert process.stdout is not None
    assert process.stderr is not None
    told = (await process.stderr.readline()).decode()
    assert told.startswith(f"no response from {broker}: ")
    assert told.endswith("; trying again until Ctrl-C\n")
    async with gateway(_show, port=port):
        assert (await process.stderr.readline()).decode() == _following(broker).decode()
        out, err = await process.communicate()
    assert (process.returncode, out.count(b"\n"), err) == (0, 2, b"")


async def test_a_broker_that_does_not_answer_is_named_while_one_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cli.remote.NOTICE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and says nothing
        broker = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Remote(broker, "a-token").open_client() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5), noticed(broker):
                    await client.users.get_me()
    assert capsys.readouterr().err == f"waiting for {broker}\n"


async def test_refused_tail_is_one_line() -> None:
    async with gateway(lambda line: line.refuse(404, "not_found")) as scripted:
        process = await _tail(scripted.url)
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (1, b"", b"error: 404 not_found: why\n")


ENTRY = ReportEntry(
    "whoWins",
    "final",
    "c",
    "Who wins?",
    (ReportOption(0, 1_500, "Home"), ReportOption(1, 500, "Away side"), ReportOption(2, 0, "Draw")),
    2_000,
    ReportImpressions(3_000, 1, 1),
    is_declared=True,
)


def test_results_are_a_small_table() -> None:
    assert render(ENTRY) == [
        "Who wins?  (whoWins, 2,000 answers, shown 3,000 times)",
        "  Home       1,500   75%  ███████████████",
        "  Away side    500   25%  █████",
        "  Draw           0    0%",
    ]


def test_a_measure_that_no_event_declares_is_marked_and_comes_last() -> None:
    strange = replace(ENTRY, measure_name="whoWins2", is_declared=False)
    assert render(strange)[0] == "Who wins?  (whoWins2, not declared, 2,000 answers, shown 3,000 times)"
    assert _declared_first([strange, ENTRY]) == [ENTRY, strange]


def test_results_without_answers_have_no_shares() -> None:
    nobody = replace(ENTRY, options=(ReportOption(0, 0, "Home"),), total=0)
    assert render(replace(nobody, impressions=ReportImpressions(0, 0, 0))) == [
        "Who wins?  (whoWins, 0 answers)",
        "  Home  0    0%",
    ]


async def test_results_are_shown(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncClient(options[1], username="admin", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
        asked = await client.publish(
            "final", "Poll#show", {"title": "Who wins?", "options": ["Home", "Away"]}
        )
        await client.responses.add("final", [Answer("whoWins", asked.id, 1, "v")])
    assert await _run("results", "final", *options) == 0
    assert capsys.readouterr().out.splitlines()[2] == "  Away  1  100%  " + "█" * 20
    assert await _run("results", "final", "--json", *options) == 0
    shown = orjson.loads(capsys.readouterr().out)
    assert (shown["contextId"], shown["options"][1]) == (
        asked.id,
        {"measureValue": 1, "total": 1, "label": "Away"},
    )
    assert await _run("results", "final", "--account", "other", *options) == 1
    assert capsys.readouterr().err.startswith("error: 404 not_found")


async def test_results_take_a_log_in(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert await _run("results", "final", *options[:2]) == 1
    assert capsys.readouterr().err.startswith("error: 401 ")
