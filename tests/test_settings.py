"""`broker.settings`."""

import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from broker.setting_rules import RULES
from broker.settings import SettingError, Settings, child_environment, environment_name, settings_table


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


NAMES = [environment_name(entry.name) for entry in fields(Settings)]
ENTRIES = {environment_name(entry.name): entry for entry in fields(Settings)}
KINDS = {environment_name(name): kind for name, kind in get_type_hints(Settings).items()}
# What cannot be, of each kind; no text may have control characters, and every list has a rule.
NONSENSE: dict[Any, tuple[str, ...]] = {
    int: ("many", "1.5", "nan", "-1000000", "99999999999999999999", "\u2460"),
    float: ("long", "nan", "inf", "-inf", "-1", "1e30", "1,5"),
    bool: ("maybe", "2"),
    str: ("\x07bell", "two\nlines", "x" * 5_000),
    Path: ("\x07bell", "x" * 5_000),
    tuple[str, ...]: ("\x07bell", "a b c", "x,\x00"),
}


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_is_refused_by_name_and_says_what_is_allowed(name: str) -> None:
    for value in NONSENSE[KINDS[name]]:
        with pytest.raises(SettingError) as refused:
            Settings.load({name: value})
        text = str(refused.value)
        assert text.startswith(name)
        assert "must be" in text
        assert text.isprintable()
        assert len(text) < 300


@pytest.mark.parametrize("name", NAMES)
def test_empty_is_the_default(name: str) -> None:
    assert Settings.load({name: ""}) == Settings.load({})


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].metadata["low"] is not None])
def test_a_number_is_refused_beyond_its_range_and_taken_at_its_edge(name: str) -> None:
    entry = ENTRIES[name]
    low = entry.metadata["low"]
    others = {"BROKER_API_REPLICAS_MAX": "1000"} if name == "BROKER_API_REPLICAS_MIN" else {}
    others |= {"BROKER_API_REPLICAS_MIN": "1"} if name == "BROKER_API_REPLICAS_MAX" else {}
    if name == "BROKER_HTTP_TLS_PORT":
        others |= {"BROKER_HTTP_TLS_CERTIFICATE": "/live.pem", "BROKER_HTTP_TLS_KEY": "/live.key"}
    with pytest.raises(SettingError, match=rf"^{name}=.*: must be {low} to "):
        Settings.load({name: str(low - 1)} | others)
    assert getattr(Settings.load({name: str(low)} | others), entry.name) == low
    with pytest.raises(SettingError) as refused:
        Settings.load({name: "9" * 18} | others)
    high = str(refused.value).rpartition(" to ")[2]
    assert getattr(Settings.load({name: high} | others), entry.name) == float(high)


# Whatever these are, they are only compared, or handed on to whoever knows.
FREE_TEXTS = {"ingress_key", "matomo_reader", "matomo_reader_token", "matomo_token"}


def test_every_text_has_a_rule_or_needs_none() -> None:
    texts = {entry.name for name, entry in ENTRIES.items() if KINDS[name] in (str, tuple[str, ...])}
    assert texts - set(RULES) == FREE_TEXTS


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("BROKER_HISTORY_EVENTS", "0", "1 to 1000000"),
        ("BROKER_HISTORY_HOURS", "0", "0.001 to 8760"),
        ("BROKER_TRUSTED_PROXIES", "10.0.0.0/33", "IP addresses or networks"),
        ("BROKER_TRUSTED_PROXIES", "127.0.0.1,proxy.internal", "IP addresses or networks"),
        ("BROKER_TRUSTED_PROXIES", "10.0.0.0/255.0.0.0", "IP addresses or networks"),
        ("BROKER_PROXY_PROTOCOL", "10.0.0.0/33", "IP addresses or networks"),
        ("BROKER_WS_UNLIMITED_ADDRESSES", "everybody", "IP addresses or networks"),
        ("BROKER_BIND_HOST", "example.com", "an IP address or localhost"),
        ("BROKER_BIND_HOST", "127.0.0.1:8000", "an IP address or localhost"),
        ("BROKER_PUBLIC_HOST", "https://example.com", "a host name without a port"),
        ("BROKER_PUBLIC_HOST", "example.com:8000", "a host name without a port"),
        ("BROKER_PUBLIC_WS_URL", "https://example.com/api/v1/ws", "ws:// or wss://"),
        ("BROKER_PUBLIC_WS_URL", "wss://", "ws:// or wss://"),
        ("BROKER_PUBLIC_WS_URL", "wss://host:99999/", "ws:// or wss://"),
        ("BROKER_POSTGRES_BIN", "/nowhere/at/all", "a directory"),
        ("BROKER_RAY_ADDRESS", "10.0.0.1", "host:port or auto"),
        ("BROKER_RAY_ADDRESS", "10.0.0.1:99999", "host:port or auto"),
        ("BROKER_DEFAULT_ACCOUNT", "Demo", "lowercase letters"),
        ("BROKER_DEFAULT_ACCOUNT", "a.b", "lowercase letters"),
        ("BROKER_CLIENT_IDS", " , ,", "names without spaces"),
        ("BROKER_CLIENT_IDS", "Vision Mixer", "names without spaces"),
        ("BROKER_FETCH_ALLOW_HOSTS", "inner:70000", "host[:port]"),
        ("BROKER_IDENTITY_ALLOW_HOSTS", "https://id", "host[:port]"),
        ("BROKER_TRACES_URL", "127.0.0.1:4318", "http:// or https://"),
        ("BROKER_TRACES_URL", "ftp://127.0.0.1/v1/traces", "http:// or https://"),
        ("BROKER_TRACES_URL", "https://ada:secret@collector/v1/traces", "without a user name"),
        ("BROKER_MATOMO_URL", "matomo.example.org", "http(s)://host[:port][/path]"),
        ("BROKER_MATOMO_URL", "https://root:secret@matomo.example.org", "http(s)://host[:port][/path]"),
        ("BROKER_MATOMO_URL", "https://matomo.example.org/?module=API", "http(s)://host[:port][/path]"),
        ("BROKER_MATOMO_SETUP", "/nowhere/at/all", "a file"),
        ("BROKER_LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("BROKER_STATISTICS", "perhaps", "on or off"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(name: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.load({name: value})
    assert str(refused.value).startswith(f"{name}=")
    assert allowed in str(refused.value)


@pytest.mark.parametrize(
    ("senders", "trusted", "bind_host", "fault"),
    [
        ("10.0.0.0/24", "10.0.0.0/16,192.0.2.1", "10.1.0.1", None),
        ("127.0.0.2", "127.0.0.0/8", "127.0.0.1", None),
        ("2001:db8::7", "2001:db8::/32", "localhost", None),
        ("10.0.0.0/16", "", "127.0.0.1", "10.0.0.0/16 must lie within BROKER_TRUSTED_PROXIES"),
        ("10.0.0.0/16", "10.0.0.0/24", "127.0.0.1", "10.0.0.0/16 must lie within BROKER_TRUSTED_PROXIES"),
        ("10.0.0.1,::/64", "10.0.0.0/8", "127.0.0.1", "::/64 must lie within BROKER_TRUSTED_PROXIES"),
        ("127.0.0.0/8", "127.0.0.0/8", "0.0.0.0", "127.0.0.0/8 must not contain 127.0.0.1"),
        ("::1", "::1", "::", "::1 must not contain ::1"),
        ("10.0.0.0/24", "10.0.0.0/8", "10.0.0.7", "10.0.0.0/24 must not contain 10.0.0.7"),
    ],
)
def test_senders_of_proxy_headers_are_trusted_and_are_not_the_product(
    senders: str, trusted: str, bind_host: str, fault: str | None
) -> None:
    given = {"PROXY_PROTOCOL": senders, "TRUSTED_PROXIES": trusted, "BIND_HOST": bind_host}
    environment = {f"BROKER_{name}": value for name, value in given.items()}
    if fault is None:
        assert Settings.load(environment).proxy_protocol == tuple(senders.split(","))
        return
    with pytest.raises(SettingError, match=f"^BROKER_PROXY_PROTOCOL: {re.escape(fault)}"):
        Settings.load(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BROKER_TRUSTED_PROXIES", "10.0.0.1/8, 2001:db8::/32 ,192.0.2.1"),
        ("BROKER_TRUSTED_PROXIES", ","),
        ("BROKER_BIND_HOST", "::"),
        ("BROKER_BIND_HOST", "localhost"),
        ("BROKER_PUBLIC_WS_URL", "wss://{account}live.example.com/api/v1/ws"),
        ("BROKER_PUBLIC_WS_URL", "ws://[::1]:9000/ws"),
        ("BROKER_RAY_ADDRESS", "auto"),
        ("BROKER_RAY_ADDRESS", "ray://head:10001"),
        ("BROKER_DATABASE_URL", "postgresql:///broker?host=/run/postgresql"),
        ("BROKER_DATABASE_URL", "postgres://u:p@a:5432,b:5432/broker?target_session_attrs=primary"),
        ("BROKER_FETCH_ALLOW_HOSTS", "inner,[::1]:80,10.0.0.1:65535"),
        ("BROKER_TRACES_URL", "http://[::1]:4318/v1/traces"),
        ("BROKER_TRACES_SAMPLE", "1"),
        ("BROKER_MATOMO_URL", "http://127.0.0.1:33080/analytics/"),
    ],
)
def test_what_can_be_is_taken(name: str, value: str) -> None:
    Settings.load({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("BROKER_DATABASE_URL", "mysql://root:hunter2@db/x"), ("BROKER_ADMIN_PASSWORD", "hunter2")],
)
def test_a_secret_is_refused_without_being_shown(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name}: must be ") as refused:
        Settings.load({name: value})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("BROKER_HTTP_PORTT", "BROKER_HTTP_PORT"),
        ("BROKER_PORT", r"BROKER_HTTP_PORT, BROKER_WS_PORT or BROKER_HTTP_TLS_PORT\?"),
        ("BROKER_MATOMO", "BROKER_MATOMO_"),
        ("broker_http_port", "BROKER_HTTP_PORT"),
        ("BROKER_DATABASEURL", "BROKER_DATABASE_URL"),
        ("BROKER_USERNAM", "BROKER_USERNAME"),
    ],
)
def test_a_name_that_is_no_setting_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(SettingError, match=f"^{name}: there is no such setting; did you mean {near}"):
        Settings.load({name: ""})


@pytest.mark.parametrize(
    "name", ["LOG_FORMAT", "TLS_CERT", "DEBUG", "CONFIG", "LISTEN", "CORS_ORIGINS", "ADMIN_NAME", "", "X"]
)
def test_a_name_that_is_like_no_other_has_no_odd_hint(name: str) -> None:
    with pytest.raises(SettingError, match=r"there is no such setting; docs/settings\.md has them all$"):
        Settings.load({f"BROKER_{name}": "1"})


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("BROKER_LOG_LEVEL", "warn", "debug, info, warning, error; did you mean warning?"),
        ("BROKER_LOG_LEVEL", "INFO", "debug, info, warning, error; did you mean info?"),
        ("BROKER_LOG_LEVEL", "json", "debug, info, warning, error"),
        ("BROKER_GATEWAY_SEND", "iouring", "auto, io_uring, send; did you mean io_uring?"),
        ("BROKER_FACES_DETECTOR", "sdd", "ssd, tiny; did you mean ssd?"),
    ],
)
def test_a_choice_names_all_and_the_nearest(name: str, value: str, hint: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.load({name: value})
    assert str(refused.value) == f"{name}={value}: must be one of {hint}"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("BROKER_HTTP_PORT", "http", "BROKER_HTTP_PORT=http: must be a whole number, 1 to 65535"),
        ("BROKER_DRAIN_S", "-1", "BROKER_DRAIN_S=-1: must be 0 to 600"),
        ("BROKER_DRAIN_S", "soon", "BROKER_DRAIN_S=soon: must be a number, 0 to 600"),
        ("BROKER_FACES_MODELS", "/nowhere", "BROKER_FACES_MODELS=/nowhere: must be a directory that exists"),
        ("BROKER_MATOMO_SETUP", "/nowhere", "BROKER_MATOMO_SETUP=/nowhere: must be a file that exists"),
    ],
)
def test_a_refusal_shows_what_was_written_and_all_that_is_allowed(name: str, value: str, told: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.load({name: value})
    assert str(refused.value) == told


def test_a_text_that_is_too_long_is_called_so() -> None:
    with pytest.raises(SettingError, match="at most 4,096 characters"):
        Settings.load({"BROKER_PUBLIC_HOST": "x" * 5_000})


def test_names_that_only_clients_and_builds_read_are_left_alone() -> None:
    clients = ("BROKER_URL", "BROKER_TOKEN", "BROKER_USERNAME", "BROKER_PASSWORD", "BROKER_MOVE_TO")
    for name in (*clients, "BROKER_LEAK_ROUNDS"):
        Settings.load({name: "anything"})


def test_every_variable_that_the_code_reads_is_known() -> None:
    root = Path(__file__).parents[1]
    read = set()
    for pattern in (
        "python/**/*.py",
        "native/**/*.rs",
        "Makefile",
    ):
        for path in root.glob(pattern):
            read |= set(re.findall(r"BROKER_[A-Z0-9_]*[A-Z0-9]", path.read_text()))
    Settings.load(dict.fromkeys(read, ""))


def test_an_environment_of_another_version_may_have_other_names() -> None:
    assert Settings.load({"BROKER_OF_NEWER_CODE": "1"}, refuses_unknown=False) == Settings.load({})


def test_fewest_replicas_are_no_more_than_most() -> None:
    with pytest.raises(SettingError, match="BROKER_API_REPLICAS_MIN: must be at most"):
        Settings.load({"BROKER_API_REPLICAS_MIN": "9"})


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


@pytest.mark.parametrize("name", ["BROKER_BIND_HOST", "BROKER_OPS_HOST"])
def test_the_address_of_a_node_is_for_clusters(name: str) -> None:
    Settings.load({name: "node", "BROKER_RAY_ADDRESS": "head:6379"})
    with pytest.raises(SettingError, match=f"{name}: must be an address"):
        Settings.load({name: "node"})


@pytest.mark.parametrize(("given", "missing"), [("CERTIFICATE", "KEY"), ("KEY", "CERTIFICATE")])
def test_a_certificate_and_its_key_come_together(given: str, missing: str) -> None:
    with pytest.raises(SettingError, match=f"^BROKER_WS_TLS_{missing}: is needed"):
        Settings.load({f"BROKER_WS_TLS_{given}": "/etc/ssl/live.pem"})
