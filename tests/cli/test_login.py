"""A log-in is kept for other commands, for its user alone, and shown nowhere."""

import asyncio
import io
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from broker.cli.main import run
from broker.cli.saved_logins import SavedLogin, SavedLogins
from tests.auth.services import PASSWORD
from tests.client.test_product import product, url  # noqa: F401 - fixtures

NOON = datetime(2026, 7, 19, 12, tzinfo=UTC)
HERE, THERE = "http://demo.localhost:8000", "http://arena.localhost:8000"
product_test = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def logins(tmp_path: Path) -> SavedLogins:
    return SavedLogins(tmp_path / "inner" / "logins.json")


def test_log_ins_are_kept_for_each_broker(logins: SavedLogins) -> None:
    here, there = SavedLogin("ada", "secret-1", NOON), SavedLogin("ben", "secret-2")
    logins.keep(HERE, here)
    logins.keep(THERE, there)
    assert logins.find("HTTP://Demo.localhost:8000/api/v1/") == here
    assert logins.find(THERE) == there
    assert logins.latest() == THERE
    assert logins.find("http://elsewhere.localhost:8000") is None
    assert logins.forget(THERE)
    assert not logins.forget(THERE)
    assert (logins.find(THERE), logins.latest()) == (None, HERE)


def test_only_its_user_may_read_the_file(logins: SavedLogins) -> None:
    for secret in ("first", "second"):
        logins.keep(HERE, SavedLogin("ada", secret))
        assert stat.S_IMODE(logins.file.stat().st_mode) == 0o600
        assert stat.S_IMODE(logins.file.parent.stat().st_mode) == 0o700
        assert [path.name for path in logins.file.parent.iterdir()] == ["logins.json"]


def test_log_ins_at_the_same_time_are_all_kept(logins: SavedLogins) -> None:
    urls = [f"http://account-{number}.localhost:8000" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda broker: logins.keep(broker, SavedLogin("ada", "secret")), urls))
    lost = [broker for broker in urls if logins.find(broker) is None]
    assert not lost, "each log-in is kept, whoever else logs in meanwhile"


def test_a_damaged_file_is_named(logins: SavedLogins) -> None:
    logins.keep(HERE, SavedLogin("ada", "secret"))
    logins.file.write_text("{")
    with pytest.raises(ValueError, match=r"logins\.json is damaged"):
        logins.find(HERE)


def test_a_log_in_does_not_show_its_token() -> None:
    assert "secret" not in repr(SavedLogin("ada", "secret"))


def test_a_log_in_that_has_ended_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    ended = datetime.now(UTC) - timedelta(seconds=1)
    SavedLogins.of_user().keep(HERE, SavedLogin("ada", "secret", ended))
    assert run(["program", "list"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: the log-in of ada at {HERE} has ended; `broker login`")
    assert run(["logout"]) == 0
    assert capsys.readouterr().out == f"logged out of {HERE}\n"
    assert run(["logout", "--url", HERE]) == 1
    assert capsys.readouterr().err == f"error: there is no log-in at {HERE}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["login"], "--username is required, because there is no terminal"),
        (["login", "--username", "ada"], "--password is required, because there is no terminal"),
        (["login", "--with-token"], "standard input, which is empty"),
        (["login", "--with-token", "--username", "ada"], "give either --with-token, or"),
        (["program", "delete", "final"], "--yes is required, because there is no terminal"),
        (["program", "list", "--limit", "0"], "greater than or equal to 1"),
    ],
)
def test_what_is_missing_is_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("COLUMNS", "200")
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert text in captured.err


async def _run(*arguments: str) -> int:
    return await asyncio.to_thread(run, [*arguments])


class TestAtABroker:
    pytestmark = product_test

    async def test_commands_use_the_log_in_until_it_is_forgotten(
        self,
        url: str,  # noqa: F811 - the fixture
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
        assert await _run("login", "--url", url, "--username", "admin", "--password", "-") == 0
        assert capsys.readouterr().out == f"logged in at {url} as admin (admin)\n"
        assert await _run("whoami", "--json") == 0
        me = orjson.loads(capsys.readouterr().out)
        assert (me["username"], me["role"], me["account"], me["url"]) == ("admin", "admin", "demo", url)
        assert datetime.fromisoformat(me["expires"]) > datetime.now(UTC)
        assert await _run("whoami") == 0
        assert capsys.readouterr().out.startswith(f"admin (admin) of demo at {url}, until ")

        assert await _run("program", "create", "final", "--name", "The final", "--private") == 0
        assert capsys.readouterr().out == "final  -     private  The final\n"
        assert await _run("program", "create", "final") == 1
        assert capsys.readouterr().err.startswith("error: 409 conflict: ")
        assert await _run("program", "create", "semi", "--start", "2026-07-15", "--end", "2999-01-01") == 0
        assert await _run("program", "list", "--limit", "1") == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[-1] == "semi  live  public   semi"
        assert captured.err == "1 more; --limit 2 lists them all\n"
        assert await _run("program", "list", "--live", "--json") == 0
        assert [orjson.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["semi"]
        assert await _run("program", "list", "--search", "nothing") == 0
        assert capsys.readouterr() == ("", "no programs\n")
        assert await _run("program", "show", "final") == 0
        assert capsys.readouterr().out.startswith("final  The final\n  status    not live\n")
        assert await _run("program", "show", "final", "--json") == 0
        assert orjson.loads(capsys.readouterr().out)["access"] == "private"
        assert await _run("publish", "final", "Score#update") == 0
        assert await _run("program", "delete", "final", "--yes") == 0
        capsys.readouterr()

        assert await _run("logout") == 0
        capsys.readouterr()
        assert await _run("program", "list", "--url", url) == 1
        told = capsys.readouterr().err
        assert told.startswith("error: 401 invalid_token: ")
        assert told.endswith("; `broker login` signs in\n")

    async def test_api_tokens_are_made_kept_and_revoked(
        self,
        url: str,  # noqa: F811 - the fixture
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert await _run("login", "--url", url, "--username", "producer", "--password", PASSWORD) == 0
        capsys.readouterr()
        assert await _run("token", "list") == 0
        assert capsys.readouterr() == ("", "no API tokens\n")
        assert await _run("token", "create", "scoreboard", "--expires", "2999-01-01") == 0
        secret, told = capsys.readouterr()
        assert told.endswith("which is shown only now:\n")
        assert await _run("token", "list") == 0
        listed = capsys.readouterr().out
        assert listed.endswith(", until 2999-01-01  scoreboard\n")
        assert secret.strip() not in listed

        monkeypatch.setattr("sys.stdin", io.StringIO(secret))
        assert await _run("login", "--with-token", "--json") == 0
        kept = capsys.readouterr()
        assert (orjson.loads(kept.out)["username"], orjson.loads(kept.out)["expires"]) == ("producer", None)
        assert secret.strip() not in kept.out + kept.err
        assert await _run("whoami") == 0
        assert await _run("token", "revoke", listed.split()[0]) == 0
        capsys.readouterr()
        async with asyncio.timeout(5):
            while await _run("whoami") == 0:
                capsys.readouterr()
                await asyncio.sleep(0.05)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: 401 ")

    async def test_a_wrong_password_keeps_nothing(
        self,
        url: str,  # noqa: F811 - the fixture
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert await _run("login", "--url", url, "--username", "admin", "--password", "wrong") == 1
        assert capsys.readouterr().err.startswith("error: 401 bad_credentials: ")
        assert SavedLogins.of_user().latest() is None
