"""One log for all processes."""

import builtins
import json
import logging
import multiprocessing
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker import logs
from broker.logs import FILES, JsonFormatter, SharedFile, configure_logs
from broker.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "log").mkdir()
    return Settings(data_dir=tmp_path, log_limit_bytes=1 << 20)


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Everything as it was before, so that pytest still sees what is logged."""
    names = ("", "broker", "broker.access")
    before = [
        (logger, logger.handlers, logger.level, logger.propagate) for logger in map(logging.getLogger, names)
    ]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    logs._process.clear()


def read_lines(directory: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for file in sorted(directory.iterdir()) for line in file.read_text().splitlines()
    ]


def test_event_has_its_fields_its_process_and_its_time(settings: Settings) -> None:
    configure_logs(settings, "owner-0")
    extra = {"slot": "owner-0", "_theirs": 1}
    logging.getLogger("broker.storage.fence").warning("slot_fenced", extra=extra)
    [line] = read_lines(settings.data_dir / "log")
    time = str(line.pop("time"))
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert line == {
        "level": "warning",
        "logger": "broker.storage.fence",
        "event": "slot_fenced",
        "part": "owner-0",
        "pid": os.getpid(),
        "slot": "owner-0",
    }


def test_line_of_a_library_is_an_event_with_a_text(settings: Settings) -> None:
    configure_logs(settings, "api")
    logging.getLogger("asyncio").error("Task %s was never retrieved", "a")
    logging.getLogger("brokerage").warning("Not ours")
    logging.getLogger("asyncio").info("too much")
    told = [(line["event"], line["text"]) for line in read_lines(settings.data_dir / "log")]
    assert told == [("library_log", "Task a was never retrieved"), ("library_log", "Not ours")]


def test_trace_is_as_python_prints_it_whatever_prints_here(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In its replicas Ray Serve has a `print` that writes what it is given as one tuple.
    whole = print
    monkeypatch.setattr(builtins, "print", lambda *given, **options: whole(given, **options))
    configure_logs(settings, "api")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("broker").exception("request_failed")
    [line] = read_lines(settings.data_dir / "log")
    trace = str(line["trace"]).splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[1].startswith('  File "')
    assert trace[-1] == "ValueError: why"


def test_field_that_json_cannot_hold_is_written_all_the_same(settings: Settings) -> None:
    configure_logs(settings, "api")
    logging.getLogger("broker").warning("odd", extra={"text": "\ud800", "number": 1 << 70})
    [line] = read_lines(settings.data_dir / "log")
    assert line["number"] == 1 << 70
    assert line["event"] == "odd"


def test_log_is_for_us_alone(settings: Settings) -> None:
    configure_logs(settings, "api")
    assert (settings.data_dir / "log" / "broker.log").stat().st_mode & 0o777 == 0o600


def test_on_a_cluster_of_others_the_log_goes_to_standard_error(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logs(replace(settings, ray_address="head:6379"), "owner-0")
    logging.getLogger("broker").warning("here")
    assert list((settings.data_dir / "log").iterdir()) == []
    assert [
        handler for handler in logging.getLogger("broker").handlers if isinstance(handler, SharedFile)
    ] == []


def write_many(path: Path, name: str, count: int) -> None:
    handler = SharedFile(path, limit_bytes=20_000)
    handler.setFormatter(JsonFormatter())
    for number in range(count):
        handler.emit(
            logging.makeLogRecord({"name": name, "msg": "event", "number": number, "text": "x" * 50})
        )


def test_processes_share_a_file_that_is_put_aside_for_all(tmp_path: Path) -> None:
    """No line is lost, cut or mixed with another, whoever puts the file aside.

    The number of times depends on the machine: while the one who is at it has no processor, others write on.
    """
    path = tmp_path / "broker.log"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, f"w{n}", 150)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = read_lines(tmp_path)
    assert path.with_name("broker.log.1").exists()
    for n in range(4):
        assert sorted(line["number"] for line in lines if line["logger"] == f"w{n}") == list(range(150))


def test_log_takes_no_more_than_its_share(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    write_many(path, "w", 3_000)
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == FILES
    assert max(sizes) < 21_000
    assert read_lines(tmp_path)
    assert json.loads(path.read_text().splitlines()[-1])["number"] == 2_999


def write_on_a_full_disk(path: Path) -> None:
    """Two lines at a time until there is no more room, and one more when there is."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    handler = SharedFile(path, limit_bytes=1 << 20)
    for number in range(10):
        line = json.dumps({"number": number, "text": "x" * 50})
        handler.emit(logging.makeLogRecord({"msg": f"{line}\n{line}"}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    SharedFile(path, limit_bytes=1 << 20).emit(logging.makeLogRecord({"msg": json.dumps({"number": 10})}))


def test_no_line_is_cut_where_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    writer = multiprocessing.get_context("fork").Process(target=write_on_a_full_disk, args=(path,))
    writer.start()
    writer.join()
    numbers = [line["number"] for line in read_lines(tmp_path)]
    # 76 bytes each: thirteen lines have room, and the beginning of the next.
    assert numbers == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 10]


def test_log_goes_on_after_its_file_was_taken_away(tmp_path: Path) -> None:
    handler = SharedFile(tmp_path / "broker.log", 1 << 20)
    handler.emit(logging.makeLogRecord({"msg": "one"}))
    (tmp_path / "broker.log").unlink()
    handler.emit(logging.makeLogRecord({"msg": "two"}))
    assert (tmp_path / "broker.log").read_text() == "two\n"
    handler.close()


def test_events_are_names_with_fields_and_no_prose() -> None:
    """`call_failed` with `extra`, not `call_failed method=%s`: what is in the text is no field."""
    call = re.compile(r"""\b_?(?:log|LOG)\.(?:debug|info|warning|error|exception)\(\s*f?"([^"]*)\"""")
    package = Path(logs.__file__).parent
    told = {name: call.findall(name.read_text()) for name in package.rglob("*.py")}
    events = {event for found in told.values() for event in found}
    assert len(events) > 40
    assert {event for event in events if not re.fullmatch(r"[a-z_.]+", event)} == {"%s"}
    assert [name.name for name, found in told.items() if "%s" in found] == ["access_log.py"]
