"""The command line as a user meets it: statuses, one line for a failure, fast help."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from broker import __version__
from broker.cli.main import COMMANDS, one_line, run
from broker.cli.publish import read_metadata
from broker.cli.tail import parse_cursor
from broker.cli.transfer import read_lines
from broker.client import Cursor
from broker.errors import NotFound

SCRIPT = "from broker.cli.main import main; main()"
NOBODY = "http://demo.localhost:9"  # the discard port: nobody listens there


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert [lazy for lazy in COMMANDS if f" {lazy.name} " not in text] == []


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"broker {__version__}\n"


@pytest.mark.parametrize(("name", "version"), [("openapi", "3.1.0"), ("asyncapi", "3.0.0")])
def test_a_document_has_the_limits_of_the_environment(
    name: str, version: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_METADATA_LIMIT_BYTES", "7168")
    assert run([name]) == 0
    text = capsys.readouterr().out
    assert orjson.loads(text)[name] == version
    assert "7,168" in text


def test_help_loads_nothing_of_the_server() -> None:
    heavy = "{'ray', 'fastapi', 'asyncpg', 'pydantic', 'httpx'}"
    code = f"import sys; from broker.cli.main import run; run(['--help']); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_publishing_loads_nothing_of_the_server() -> None:
    heavy = "{'ray', 'fastapi', 'asyncpg', 'pydantic'}"
    modules = "broker.cli.publish, broker.cli.results, broker.cli.tail, broker.cli.transfer"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_running_the_product_loads_nothing_that_its_parts_do() -> None:
    heavy = "{'ray', 'asyncpg', 'cryptography', 'httpx', 'pydantic', 'rich'}"
    code = f"import sys, broker.cli.main, broker.cli.up; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("lazy", COMMANDS, ids=lambda lazy: lazy.name)
def test_every_command_has_help(lazy: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([lazy.name, "--help"]) == 0  # type: ignore[attr-defined]
    assert f"broker {lazy.name}" in capsys.readouterr().out  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "No such command"),
        (["publish"], "Missing argument"),
        (["publish", "p", "A#b", "--metadata", "[]"], "must be a JSON object"),
        (["publish", "p", "A#b", "--metadata", "{"], "is not valid JSON"),
        (["publish", "p", "A#b", "--url", "demo"], "must be an http or https URL"),
        (["publish", "p", "A#b", "--username", "u"], "go together"),
        (["tail", "p", "--since", "x"], "EPOCH:SEQ"),
        (["tail", "p", "--history", "-1"], "greater than or equal to 0"),
        (["import", "p", "/no/such/file"], "does not exist"),
    ],
)
def test_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_failure_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["publish", "p", "A#b", "--metadata", f"@{tmp_path}/none"]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {tmp_path}/none: No such file or directory\n"


def test_debug_shows_the_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--debug", "publish", "p", "A#b", "--metadata", f"@{tmp_path}/none"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_error_line_has_no_line_break() -> None:
    assert one_line(NotFound("no\n such\tprogram")) == "no such program"


def test_missing_server_is_told_with_its_remedy() -> None:
    error = ModuleNotFoundError("No module named 'ray'", name="ray")
    remedy = "pip install 'onair-broker[server]'"
    assert one_line(error) == f"ray is not installed; this command needs the server: {remedy}"


def test_unforeseen_error_names_its_class() -> None:
    assert one_line(KeyError("x")).startswith("KeyError: 'x'; ")


def test_interrupted_command_ends_quietly_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.publish.read_metadata", interrupt)
    assert run(["publish", "p", "A#b"]) == 130
    assert capsys.readouterr() == ("", "")


def test_metadata_comes_inline_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text('{"a": 1}')
    assert read_metadata(None) is None
    assert read_metadata('{"a": 1}') == read_metadata(f"@{file}") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "cursor"), [(None, None), ("e:0", Cursor("e", 0)), ("a:b:12", Cursor("a:b", 12))]
)
def test_cursor_is_read(text: str | None, cursor: Cursor | None) -> None:
    assert parse_cursor(text) == cursor


def test_cursor_may_name_the_message_it_has_seen() -> None:
    cursor = parse_cursor("a:b:12:018f2b1c-0000-7000-8000-00000000000a")
    assert cursor == Cursor("a:b", 12)
    assert cursor.id == "018f2b1c-0000-7000-8000-00000000000a"


def test_lines_are_read_one_event_each(tmp_path: Path) -> None:
    file = tmp_path / "e.ndjson"
    file.write_bytes(orjson.dumps({"event": "A#b"}) + b"\n\n" + orjson.dumps({"event": "C#d"}))
    assert [event["event"] for event in read_lines(file)] == ["A#b", "C#d"]


@pytest.mark.parametrize("line", ["{", "[]", "3"])
def test_faulty_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "e.ndjson"
    file.write_text('{"event":"A#b"}\n' + line)
    with pytest.raises(ValueError, match="line 2"):
        list(read_lines(file))


def test_url_of_an_image_that_cannot_be_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ("w=400,f=webp", "preset=card"):
        assert run(["image", "https://a.test/a.png", "--options", options]) == 0
        assert options in capsys.readouterr().out
    assert run(["image", "https://a.test/a.png", "--options", "w=4x"]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "error: w: 50, or 100 to 2000 in multiples of 100\n")
