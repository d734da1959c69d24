"""`broker.settings`."""

import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from broker.settings import SettingError, Settings, child_environment, settings_table


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = Settings.load({})
    assert (settings.http_port, settings.ws_port, settings.public_host) == (8000, 8001, "localhost")


def test_the_environment_is_read_by_type() -> None:
    settings = Settings.load(
        {
            "BROKER_HTTP_PORT": "9000",
            "BROKER_DATA_DIR": "/srv/broker",
            "BROKER_DRAIN_S": "2.5",
            "BROKER_CLIENT_IDS": "One, Two",
        }
    )
    assert settings.http_port == 9000
    assert settings.data_dir == Path("/srv/broker")
    assert settings.drain_s == 2.5
    assert settings.client_ids == ("One", "Two")


def test_an_override_wins_and_none_does_not() -> None:
    environ = {"BROKER_HTTP_PORT": "9000", "BROKER_WS_PORT": "9001"}
    settings = Settings.load(environ, http_port=7000, ws_port=None)
    assert (settings.http_port, settings.ws_port) == (7000, 9001)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BROKER_FETCH_ALLOW_HOSTS", "http://inner"),
        ("BROKER_FETCH_ALLOW_HOSTS", "inner:0"),
        ("BROKER_FETCH_ALLOW_HOSTS", "inner,10.0.0.0/8"),
        ("BROKER_HTTP_PORT", "0"),
        ("BROKER_HTTP_PORT", "65536"),
        ("BROKER_HTTP_PORT", "http"),
        ("BROKER_GATEWAY_SEND", "sendfile"),
        ("BROKER_GATEWAY_LOOPS", "65"),
        ("BROKER_WS_WAITING_BYTES", "1000"),
        ("BROKER_WS_PORT", "8000"),
        ("BROKER_TOKEN_LIFETIME_S", "9"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        Settings.load({name: value})


@pytest.mark.parametrize("value", ["1", "65535"])
def test_a_port_may_be_at_its_edge(value: str) -> None:
    assert Settings.load({"BROKER_HTTP_PORT": value}).http_port == int(value)


def test_every_setting_says_what_it_is() -> None:
    assert [entry.name for entry in fields(Settings) if not entry.metadata["text"].endswith(".")] == []


def test_settings_survive_the_way_to_a_child_process() -> None:
    settings = Settings.load(
        {}, http_port=9000, data_dir=Path("/srv/broker"), client_ids=("One", "Two"), drain_s=2.5
    )
    assert Settings.load(settings.to_environment()) == settings


def test_settings_survive_the_way_to_another_version() -> None:
    restore, (values,) = Settings(http_port=9000).__reduce__()
    values = {"of_a_newer_version": 1, **values}
    del values["ws_port"]
    assert restore(values) == Settings(http_port=9000)
    assert pickle.loads(pickle.dumps(Settings(drain_s=2.5))) == Settings(drain_s=2.5)


def test_the_first_password_is_not_handed_to_child_processes() -> None:
    settings = Settings.load({}, admin_password="correct-horse")
    assert "correct-horse" not in str(settings.to_environment())


def test_a_child_process_inherits_everything_but_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_HTTP_PORT", "9000")
    monkeypatch.setenv("OTHER", "kept")
    environment = child_environment({"BROKER_WS_PORT": "9001"})
    assert "BROKER_HTTP_PORT" not in environment
    assert (environment["OTHER"], environment["BROKER_WS_PORT"]) == ("kept", "9001")


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text().endswith(settings_table()), "write the result of settings_table() into the page"
