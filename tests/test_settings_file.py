"""`broker.settings_file`, and settings that come from such a file."""

from pathlib import Path

import pytest

from broker.settings import SettingError, Settings, shadowed_names
from broker.settings_file import LIMIT_BYTES, SettingsFileError, parse_settings_file

NAME = "BROKER_SETTINGS_FILE"


def written(tmp_path: Path, text: str) -> dict[str, str]:
    """The environment that names a file with this text."""
    path = tmp_path / "broker.env"
    path.write_text(text)
    return {NAME: str(path)}


def test_lines_are_names_and_values() -> None:
    text = """
# of the arena
; as systemd has it
BROKER_HTTP_PORT=9000
  BROKER_LOG_LEVEL = debug
"""
    with pytest.raises(SettingsFileError, match="line 5"):
        parse_settings_file(text)
    assert parse_settings_file(text.replace("LEVEL =", "LEVEL=")) == {
        "BROKER_HTTP_PORT": "9000",
        "BROKER_LOG_LEVEL": "debug",
    }


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=", ""),
        ("A= b c ", "b c"),
        ('A="b c "', "b c "),
        ("A='b c '", "b c "),
        ("A=''", ""),
        ("A='it is \"so\" \\'", 'it is "so" \\'),
        ("A=it's", "it's"),
        ("A=a=b#c", "a=b#c"),
        ("A=$HOME", "$HOME"),
        ("A=b\r", "b"),
    ],
)
def test_a_value_is_what_stands_there(line: str, value: str) -> None:
    assert parse_settings_file(line) == {"A": value}


@pytest.mark.parametrize(
    "line",
    ["A", "=b", "1A=b", "export A=b", "A=b\\", 'A="b\\"c"', 'A="b', "A='", 'A="b"c', 'A="b" "c"', "A=b\nA=c"],
)
def test_what_systemd_would_read_otherwise_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(SettingsFileError, match=r"line [12]$"):
        parse_settings_file(line)


def test_the_environment_wins_over_the_file_and_an_option_over_both(tmp_path: Path) -> None:
    environ = written(tmp_path, "BROKER_HTTP_PORT=9000\nBROKER_WS_PORT=9001\nBROKER_DRAIN_S=2\n")
    environ |= {"BROKER_HTTP_PORT": "8100", "BROKER_DRAIN_S": "", "BROKER_LOG_LEVEL": "debug"}
    settings = Settings.load(environ, ws_port=8101)
    assert (settings.http_port, settings.ws_port, settings.drain_s) == (8100, 8101, 2.0)
    assert settings.log_level == "debug"
    assert shadowed_names(environ) == ["BROKER_HTTP_PORT"]


def test_without_a_file_nothing_is_shadowed() -> None:
    assert shadowed_names({"BROKER_HTTP_PORT": "8100"}) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("BROKER_HTTP_PORT=http", "BROKER_HTTP_PORT=http: must be a whole number, 1 to 65535"),
        (
            "BROKER_HTTP_PORTT=1",
            "BROKER_HTTP_PORTT: there is no such setting; did you mean BROKER_HTTP_PORT?",
        ),
        ("BROKER_URL=http://localhost", "BROKER_URL: there is no such setting"),
        ("PATH=/bin", ": must have settings only, and has PATH"),
        ("BROKER_SETTINGS_FILE=/etc/other", ": must have settings only, and has BROKER_SETTINGS_FILE"),
        ("what is this", ": must have NAME=VALUE in line 1"),
        ("x" * (LIMIT_BYTES + 1), ": must be a file of at most 1 MiB"),
    ],
)
def test_nonsense_in_the_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.load(written(tmp_path, text))
    assert told in str(refused.value)
    assert str(refused.value).startswith("BROKER_")


def test_a_file_that_is_away_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"^{NAME}=.*: must be a file that can be read"):
        Settings.load({NAME: str(tmp_path / "away.env")})


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.env"
    path.write_bytes(b"BROKER_DRAIN_S=\xff")
    with pytest.raises(SettingError, match="must be a file in UTF-8"):
        Settings.load({NAME: str(path)})


def test_child_processes_get_the_settings_and_not_the_file(tmp_path: Path) -> None:
    environ = written(tmp_path, "BROKER_DRAIN_S=2")
    told = Settings.load(environ).to_environment()
    assert told["BROKER_DRAIN_S"] == "2.0"
    assert NAME not in told
