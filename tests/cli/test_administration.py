"""`broker account` and `broker user` on a real database."""

import io
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.cli.main import run
from tests.auth.visitor_tokens import pem

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(migrated_dsn: str) -> list[str]:
    return ["--database-url", migrated_dsn]


def test_unmigrated_database_says_what_to_do(postgres_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "list", "--database-url", postgres_dsn]) == 1
    assert "run `broker migrate`" in capsys.readouterr().err


def test_accounts_are_made_changed_and_listed(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "set", "arena", "--origin", "https://a.example", *database]) == 0
    capsys.readouterr()
    assert run(["account", "list", "--json", *database]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    account = orjson.loads(line)
    assert (account["name"], account["origins"]) == ("arena", ["https://a.example"])
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z", account["createdTime"])


def test_second_account_of_a_name_is_one_line(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "add", "arena", *database]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_users_are_made_changed_and_removed(
    database: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = ["--account", "arena", *database]
    assert run(["account", "add", "arena", *database]) == 0
    for name in ("ada", "ben"):
        assert run(["user", "add", name, "--role", "admin", "--password", "correct-horse", *user]) == 0
    assert run(["user", "role", "ben", "client", *user]) == 0
    assert run(["user", "passwd", "ben", "--password", "battery-staple", *user]) == 0
    capsys.readouterr()
    assert run(["user", "list", "--json", *user]) == 0
    users = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["username"], one["role"]) for one in users] == [("ada", "admin"), ("ben", "client")]
    assert [key for one in users for key in one if "password" in key.lower()] == []
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # no terminal
    assert run(["user", "delete", "ben", *user]) == 2
    assert "--yes is required" in capsys.readouterr().err
    assert run(["user", "delete", "ben", "--yes", *user]) == 0
    assert capsys.readouterr().out == "ben is deleted\n"
    assert run(["user", "delete", "ada", "--yes", *user]) == 1
    assert "admin" in capsys.readouterr().err


def test_keys_are_listed_rotated_and_revoked(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*arguments: str) -> list[tuple[str, str]]:
        capsys.readouterr()
        assert run(["keys", *arguments, "--json", *database]) == 0
        lines = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line for line in lines if sorted(line) != ["createdTime", "endTime", "kid", "state"]] == []
        return [(line["kid"], line["state"]) for line in lines]

    assert keys("list") == []
    ((first, state),) = keys("rotate")
    assert state == "signing"
    assert [state for _, state in keys("rotate")] == ["signing", "announced"]
    (_, (second, _)) = keys("list")
    assert keys("revoke", first) == [(first, "revoked"), (second, "signing")]
    assert [state for _, state in keys("revoke", "--all")] == ["revoked", "revoked", "signing"]
    for wrong in (["revoke"], ["revoke", first, "--all"], ["revoke", "nobody"]):
        assert run(["keys", *wrong, *database]) != 0
        assert capsys.readouterr().err.count("\n") == 1


def test_short_password_names_the_field(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    arguments = ["user", "add", "ada", "--role", "user", "--password", "short", "--account", "arena"]
    assert run([*arguments, *database]) == 1
    assert capsys.readouterr().err.startswith("error: password")


def test_days_for_which_events_are_kept(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "set", "arena", "--keep-events", "90", *database]) == 0
    assert run(["account", "set", "arena", "--keep-all-events", *database]) == 0
    assert run(["account", "set", "nobody", "--keep-events", "90", *database]) == 1
    assert "no such account" in capsys.readouterr().err
    for wrong in (["0"], ["-1"], ["36501"], ["x"], ["90", "--keep-all-events"]):
        assert run(["account", "set", "arena", "--keep-events", *wrong, *database]) == 2
        assert "keep-events" in capsys.readouterr().err


def test_quotas_are_set_lifted_and_shown(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> dict[str, Any]:
        capsys.readouterr()
        assert run(["account", "show", "arena", "--json", *database]) == 0
        return dict(orjson.loads(capsys.readouterr().out))

    assert run(["account", "add", "arena", *database]) == 0
    nothing = dict.fromkeys(("programs", "events", "storage", "images"))
    assert shown()["quotas"] == nothing
    quotas = ["--quota", "programs=10", "--quota", "events=50", "--quota", "images=600"]
    assert run(["account", "set", "arena", "--keep-events", "90", *quotas, *database]) == 0
    assert (
        run(["account", "set", "arena", "--quota", "storage=1000000", "--quota", "events=", *database]) == 0
    )
    told = shown()
    assert told["quotas"] == {"programs": 10, "events": None, "storage": 1_000_000, "images": 600}
    assert (told["used"], told["keepEventsDays"]) == ({"programs": 0, "storage": 0}, 90)
    assert run(["account", "show", "arena", *database]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "arena  (any origin)",
        "events are kept: for 90 days",
        "programs: 0, at most 10",
        "events a second: no quota",
        "bytes in storage: 0, at most 1000000",
        "images made a minute: at most 600",
    ]
    assert run(["account", "set", "nobody", "--quota", "events=1", *database]) == 1
    assert run(["account", "show", "nobody", *database]) == 1
    assert capsys.readouterr().err.count("no such account") == 2
    for wrong in ("events", "votes=1", "events=0", "events=-1", "events=1000001", "events=x", "=1"):
        assert run(["account", "set", "arena", "--quota", wrong, *database]) == 2
        assert "--quota" in capsys.readouterr().err


def test_origins_are_kept_as_browsers_send_them(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway compares texts: another spelling would lock out all pages."""
    add = ["account", "add", "arena", "--json", "--origin", "HTTPS://Ä.de:443/", "--origin", "https://ä.de"]
    assert run([*add, *database]) == 0
    assert orjson.loads(capsys.readouterr().out)["origins"] == ["https://xn--4ca.de"]
    for wrong in ("a.b", "https://a.b/path", "https://*.b", "", "*"):
        assert run(["account", "set", "arena", "--origin", wrong, *database]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: origin: {wrong!r} must ")
        assert ("--any-origin" in error) == (wrong == "*")
    assert run(["account", "list", "--json", *database]) == 0
    assert orjson.loads(capsys.readouterr().out)["origins"] == ["https://xn--4ca.de"]


def test_origins_must_be_told_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "set", "arena", "--any-origin", "--no-origin"]) == 2
    assert "either --origin" in capsys.readouterr().err


def test_identity_providers_are_trusted_listed_and_distrusted(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    issuer = "https://login.example.org"
    trust = ["account", "trust", "arena", issuer, "--jwks-url", f"{issuer}/keys", "--audience", "broker"]
    assert run([*trust, *database]) == 1
    assert "no such account" in capsys.readouterr().err
    assert run(["account", "add", "arena", *database]) == 0
    assert run([*trust, *database]) == 0
    assert run([*trust, "--role-claim", "groups", "--role", "a=b=producer", *database]) == 0
    capsys.readouterr()
    assert run(["account", "trusted", "arena", "--json", *database]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert orjson.loads(line) == {
        "issuer": issuer,
        "audiences": ["broker"],
        "jwksUrl": f"{issuer}/keys",
        "roleClaim": "groups",
        "roles": {"a=b": "producer"},
    }
    assert run(["account", "distrust", "arena", issuer, *database]) == 0
    assert run(["account", "distrust", "arena", issuer, *database]) == 1


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--jwks-url", "file:///keys", "--audience", "a"], 1, "jwks_url"),
        (["--jwks-url", "https://x/", "--audience", ""], 1, "audience"),
        (["--jwks-url", "https://x/", "--audience", "a", "--role", "a=user"], 1, "role_claim"),
        (["--jwks-url", "https://x/", "--audience", "a", "--role", "a=king"], 2, "VALUE=ROLE"),
        (["--jwks-url", "https://x/"], 2, "--audience"),
    ],
)
def test_provider_that_cannot_be_trusted_is_told(
    database: list[str], capsys: pytest.CaptureFixture[str], options: list[str], code: int, told: str
) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "trust", "arena", "https://i", *options, *database]) == code
    assert told in capsys.readouterr().err


def test_an_account_gets_a_matomo_whose_tokens_are_never_shown(
    database: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [tmp_path / "token", tmp_path / "reader-token"]
    for file, token in zip(files, ("secret-1", "secret-2"), strict=True):
        file.write_text(f"{token}\n")
    matomo = ["--matomo-token-file", str(files[0]), "--matomo-reader-token-file", str(files[1])]
    matomo += ["--matomo-reader", "reader"]
    assert run(["account", "add", "arena", *database]) == 0
    change = ["account", "set", "arena", *database]
    assert run([*change, *matomo, "--matomo-url", "https://matomo.example.org/m/"]) == 0
    assert run([*change, *matomo, "--matomo-url", "https://user@matomo.example.org"]) == 1
    assert run([*change, *matomo]) == 2
    assert run([*change, "--no-matomo", *matomo]) == 2
    assert run([*change]) == 2
    files[0].write_text("")
    assert run([*change, *matomo, "--matomo-url", "https://matomo.example.org"]) == 1
    assert run([*change, "--no-matomo", "--any-origin"]) == 0
    assert run(["account", "list", "--json", *database]) == 0
    told = capsys.readouterr()
    assert "matomo_url: must be http(s)://host[:port][/path]" in told.err
    assert "matomo_token: must be a single line of text" in told.err
    assert "secret" not in told.out + told.err


def test_an_account_gets_rules_for_images(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    change = ["account", "set", "arena", "--json", *database]
    assert run(["account", "add", "arena", *database]) == 0
    capsys.readouterr()
    assert run([*change, "--image-host", "*.cdn.test", "--image-preset", "card=w=50,h=50,fit=fill"]) == 0
    assert orjson.loads(capsys.readouterr().out) == {
        "images": {"hosts": ["*.cdn.test"], "presets": {"card": "w=50,h=50,fit=fill"}, "signed": False}
    }
    assert run([*change, "--image-signing", "on", "--any-image-host", "--image-preset", "card="]) == 0
    told = orjson.loads(capsys.readouterr().out)["images"]
    assert len(told.pop("signingKey")) == 43
    assert told == {"hosts": [], "presets": {}, "signed": True}
    assert run([*change, "--image-signing", "on"]) == 0
    assert "signingKey" not in orjson.loads(capsys.readouterr().out)["images"]
    assert run([*change, "--image-signing", "maybe"]) == 2
    assert run([*change, "--image-preset", "card"]) == 2
    assert run([*change, "--any-image-host", "--image-host", "a.test"]) == 2
    capsys.readouterr()
    assert run([*change, "--image-host", "a.test/"]) == 1
    assert "image_host: a.test/: must be a host name" in capsys.readouterr().err


def test_what_was_set_for_an_account_is_shown_without_secrets(
    database: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("hidden")
    matomo = ["--matomo-url", "https://matomo.example.org", "--matomo-reader", "reader"]
    matomo += ["--matomo-token-file", str(token), "--matomo-reader-token-file", str(token)]
    images = ["--image-host", "a.test", "--image-preset", "card=w=50", "--image-signing", "on"]
    for name in ("arena", "plain"):
        assert run(["account", "add", name, *database]) == 0
    capsys.readouterr()
    assert run(["account", "set", "arena", *matomo, *images, "--json", *database]) == 0
    key = orjson.loads(capsys.readouterr().out.splitlines()[-1])["images"]["signingKey"]
    lines = ["images from a.test", "preset card: w=50", "URLs of images must be signed"]
    lines.append("Matomo: https://matomo.example.org, read as reader")
    assert run(["account", "list", *database]) == 0
    listed = capsys.readouterr().out
    assert listed.splitlines() == [
        "arena  (any origin)",
        *(f"  {line}" for line in lines),
        "plain  (any origin)",
    ]
    assert run(["account", "show", "arena", *database]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-4:] == lines
    assert run(["account", "list", "--json", *database]) == 0
    arena, plain = map(orjson.loads, capsys.readouterr().out.splitlines())
    told = {"hosts": ["a.test"], "presets": {"card": "w=50"}, "signed": True}
    assert (arena["images"], plain["images"]) == (told, {"hosts": [], "presets": {}, "signed": False})
    assert arena["matomo"] == {"url": "https://matomo.example.org", "reader": "reader"}
    assert plain["matomo"] is None
    assert run(["account", "show", "arena", "--json", *database]) == 0
    alone = orjson.loads(capsys.readouterr().out)
    assert (alone["images"], alone["matomo"]) == (arena["images"], arena["matomo"])
    for text in (listed, shown, str(arena), str(alone)):
        assert "hidden" not in text
        assert key not in text


def test_who_counts_as_a_visitor_is_set(
    database: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def visitors(*options: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(["account", "visitors", "arena", *options, "--json", *database]) == 0
        told: dict[str, Any] = orjson.loads(capsys.readouterr().out)
        return told

    assert run(["account", "visitors", "--help"]) == 0
    told = capsys.readouterr().out
    options = ("--require", "--new-secret", "--public-key", "--drop-old", "--no-keys", "--drop-issued")
    assert [option for option in options if option not in told] == []
    assert run(["account", "visitors", "arena", *database]) == 1
    assert run(["account", "add", "arena", *database]) == 0
    assert visitors() == {"visitors": "any", "visitorKeys": []}
    assert visitors("--require", "issued")["visitors"] == "issued"
    made = visitors("--new-secret")
    assert (made["visitors"], made["visitorKeys"], len(made["secret"])) == ("issued", ["HS256"], 43)
    key = tmp_path / "key.pem"
    key.write_text(pem(Ed25519PrivateKey.generate()))
    assert visitors("--public-key", str(key))["visitorKeys"] == ["EdDSA", "HS256"]
    assert visitors("--drop-old")["visitorKeys"] == ["EdDSA"]
    assert visitors("--drop-issued") == {"visitors": "issued", "visitorKeys": ["EdDSA"]}
    assert visitors("--no-keys", "--require", "any") == {"visitors": "any", "visitorKeys": []}
    key.write_text(made["secret"])
    for wrong in (
        ["--new-secret", "--no-keys"],
        ["--public-key", str(key)],
        ["--public-key", str(tmp_path / "none")],
        ["--require", "all"],
    ):
        assert run(["account", "visitors", "arena", *wrong, *database]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_owners_are_asked_for_and_shown(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "owners=3", "--wait", "0", *database]) == 0
    assert capsys.readouterr().out == "owners: 1; 3 are wanted, which `broker up` sees to\n"
    assert run(["scale", "--json", *database]) == 0
    assert orjson.loads(capsys.readouterr().out) == {"owners": 1, "wanted": 3}
    assert run(["scale", "owners=3", "--wait", "0.1", *database]) == 1
    assert "does `broker up` run?" in capsys.readouterr().err


def test_scaling_that_another_one_has_replaced_says_so(
    database: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for two owners that are no longer wanted would wait for nothing."""
    told = io.StringIO()  # not `capsys`, which loses what another thread writes while it is read
    monkeypatch.setattr(sys, "stderr", told)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(run, ["scale", "owners=2", "--wait", "60", *database])
        while "waiting for `broker up` to start 2 owners" not in told.getvalue():
            time.sleep(0.01)
            assert not first.done()
        before = told.getvalue()
        assert run(["scale", "owners=4", "--wait", "0", *database]) == 0
        assert first.result() == 1
    (line,) = told.getvalue().removeprefix(before).splitlines()
    assert "another `broker scale` wants 4 owners" in line


@pytest.mark.parametrize("number", ["owners=0", "owners=1025", "owners=many", "counters=2", "4"])
def test_number_that_cannot_be_is_refused(number: str, database: list[str]) -> None:
    assert run(["scale", number, *database]) == 2
