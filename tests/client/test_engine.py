"""Calls against a scripted HTTP peer: what is sent, what is repeated, what is raised."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import (
    AsyncClient,
    Backoff,
    BadCredentials,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    NewEvent,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    RetryPolicy,
    SlowDown,
    Unauthenticated,
    Unavailable,
)
from tests.client.peer import Answer, Asked, Script, error, event, serving

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(deadline_s=2.0, timeout_s=2.0, backoff=Backoff(0.001, 0.01))


def _sequence(*answers: Answer) -> Script:
    """Answers one after the other; asked more often than that, it fails the test."""
    steps: Iterator[Answer] = iter(answers)
    return lambda asked: next(steps)


def _tokens(lifetime_s: int = 3600) -> Script:
    """Grants tokens t1, t2 … and takes only the newest."""
    granted: list[str] = []

    def answer(asked: Asked) -> Answer:
        if asked.target.endswith("/token"):
            if asked.json()["password"] != "right":
                return error(401, "bad_credentials")
            granted.append(f"t{len(granted) + 1}")
            body = {"access_token": granted[-1], "token_type": "Bearer", "expires_in": lifetime_s}
            return Answer(200, body)
        if asked.headers.get("authorization") != f"Bearer {granted[-1] if granted else ''}":
            return error(401, "invalid_token")
        return Answer(200, {"current_time": 5})

    return answer


async def test_publish_sends_the_event_with_a_key_to_the_account() -> None:
    async with (
        serving(lambda asked: Answer(201, event(1))) as peer,
        AsyncClient(peer.url, token="t") as client,
    ):
        published = await client.publish("final", "Score#update", {"home": 1}, timestamp=7)
    (asked,) = peer.asked
    assert (asked.method, asked.target) == ("POST", "/api/v1/programs/final/events")
    assert asked.json() == {"event": "Score#update", "metadata": {"home": 1}, "timestamp": 7}
    assert asked.headers["host"] == f"demo.localhost:{peer.port}"
    assert asked.headers["authorization"] == "Bearer t"
    assert len(asked.headers["idempotency-key"]) == 36
    assert (published.seq, published.program_id, published.created_time.microsecond) == (1, "final", 123_000)


STOPPING = Answer(404, b"Path '/api/v1/' not found. Ping http://.../-/routes for available routes.")
PAGE = Answer(503, b"<html><body><h1>503 Service Unavailable</h1></body></html>")
LOST = [
    error(502, "x"),
    error(503, "unavailable"),
    error(503, "maintenance", Retry_After="0"),
    error(503, "outcome_unknown"),
    error(504, "x"),
    STOPPING,
    PAGE,
    Answer(500, {"message": "a proxy's own"}),
    Answer(cut=True),
]


@pytest.mark.parametrize("failure", LOST)
async def test_publish_is_repeated_under_one_key(failure: Answer) -> None:
    async with (
        serving(_sequence(failure, failure, Answer(201, event(1)))) as peer,
        AsyncClient(peer.url, retry=QUICK) as client,
    ):
        await client.publish("final", "Score#update")
    assert len(peer.asked) == 3
    assert len({asked.headers["idempotency-key"] for asked in peer.asked}) == 1


async def test_two_publishes_have_two_keys() -> None:
    async with serving(lambda asked: Answer(201, event(1))) as peer, AsyncClient(peer.url) as client:
        await client.publish("final", "Score#update")
        await client.publish("final", "Score#update")
    assert len({asked.headers["idempotency-key"] for asked in peer.asked}) == 2


@pytest.mark.parametrize(("status", "name"), [(429, "slow_down"), (503, "maintenance")])
async def test_retry_after_is_kept(status: int, name: str) -> None:
    script = _sequence(error(status, name, Retry_After="1"), Answer(200, {"current_time": 5}))
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await client.status.ping() == 5
        assert loop.time() - begun >= 1.0


async def test_retry_after_beyond_the_deadline_is_raised() -> None:
    async with (
        serving(_sequence(error(429, "slow_down", Retry_After="60"))) as peer,
        AsyncClient(peer.url, retry=QUICK) as client,
    ):
        with pytest.raises(SlowDown) as raised:
            await client.status.ping()
    assert raised.value.retry_after_s == 60.0


async def test_lasting_failure_is_raised_at_the_deadline() -> None:
    policy = RetryPolicy(deadline_s=0.05, backoff=Backoff(0.01, 0.02))
    async with (
        serving(lambda asked: error(503, "unavailable")) as peer,
        AsyncClient(peer.url, retry=policy) as client,
    ):
        with pytest.raises(Unavailable):
            await client.status.get_version()
    assert len(peer.asked) > 1


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (404, NotFound), (409, Conflict), (401, Unauthenticated)]
)
async def test_refusals_are_not_repeated(status: int, kind: type[Exception]) -> None:
    async with (
        serving(_sequence(error(status, "x", X_Request_Id="r1"))) as peer,
        AsyncClient(peer.url) as client,
    ):
        with pytest.raises(kind) as raised:
            await client.publish("final", "Score#update")
    assert raised.value.request_id == "r1"  # type: ignore[attr-defined]


async def test_nobody_there_is_a_connection_failure() -> None:
    async with serving(lambda asked: Answer()) as peer:
        pass
    policy = RetryPolicy(deadline_s=0.05, backoff=Backoff(0.01, 0.02))
    async with AsyncClient(peer.url, retry=policy) as client:
        with pytest.raises(ConnectionFailed, match=r"no response from http://demo\.localhost"):
            await client.status.get_version()


CHANGES: list[Callable[[AsyncClient], Awaitable[object]]] = [
    lambda client: client.programs.update("p", "P", None, None),
    lambda client: client.programs.delete("p"),
    lambda client: client.events.update("p", "e", timecode=1),
    lambda client: client.events.delete("p", "e"),
    lambda client: client.events.delete_all("p"),
    lambda client: client.events.import_all("p", b'{"events":[]}'),
    lambda client: client.projects.create("Football"),
    lambda client: client.projects.update("p", name="n", if_match='"t"'),
    lambda client: client.projects.delete("p", cascade=True),
    lambda client: client.revisions.create("p", {}),
    lambda client: client.revisions.update("p", "r", title="t"),
    lambda client: client.revisions.patch("p", "r", {"title": "t"}),
    lambda client: client.users.create("u", "correct horse", "user"),
    lambda client: client.users.update("u", name="n"),
    lambda client: client.users.delete("u"),
    lambda client: client.api_tokens.create("mixer"),
    lambda client: client.api_tokens.delete("t"),
    lambda client: client.storage.store("p", {}),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_is_repeated_under_one_key_of_its_own(
    change: Callable[[AsyncClient], Awaitable[object]],
) -> None:
    script = _sequence(Answer(cut=True), STOPPING, error(409, "conflict"), error(409, "conflict"))
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        for _ in range(2):
            with pytest.raises(Conflict):
                await change(client)
    keys = [asked.headers["idempotency-key"] for asked in peer.asked]
    assert keys[0] == keys[1] == keys[2] != keys[3]


@pytest.mark.parametrize("failure", [Answer(cut=True), error(503, "outcome_unknown")])
async def test_what_has_no_key_is_not_repeated_in_doubt(failure: Answer) -> None:
    async with serving(_sequence(failure)) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        with pytest.raises((ConnectionFailed, OutcomeUnknown)):
            await client.data_sources.request("p", "1", "source", method="POST")
    assert "idempotency-key" not in peer.asked[0].headers
    assert len(peer.asked) == 1


async def test_answer_of_another_server_is_none() -> None:
    policy = RetryPolicy(deadline_s=0.5, backoff=Backoff(0.01, 0.02))
    async with serving(lambda asked: STOPPING) as peer, AsyncClient(peer.url, retry=policy) as client:
        with pytest.raises(ConnectionFailed, match="something in front of the broker answered 404"):
            await client.status.get_version()
    assert len(peer.asked) > 1


async def test_answer_of_an_upstream_is_one() -> None:
    async with serving(_sequence(STOPPING)) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        with pytest.raises(NotFound):
            await client.data_sources.request("p", "1", "standings")


async def test_secret_that_got_lost_is_revoked() -> None:
    made = {"id": "t1", "name": "mixer", "createdTime": "2026-07-19T19:00:00.000Z", "expires": None}
    script = _sequence(
        Answer(cut=True), Answer(201, made), Answer(204), Answer(201, made | {"id": "t2", "token": "brk_2"})
    )
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        token = await client.api_tokens.create("mixer")
    assert (token.id, token.token) == ("t2", "brk_2")
    assert [asked.method for asked in peer.asked] == ["POST", "POST", "DELETE", "POST"]
    assert peer.asked[2].target == "/api/v1/users/me/tokens/t1"


async def test_first_delete_that_finds_nothing_fails() -> None:
    async with serving(_sequence(error(404, "not_found"))) as peer, AsyncClient(peer.url) as client:
        with pytest.raises(NotFound):
            await client.programs.delete("final")


async def test_password_is_turned_into_one_token_for_many_calls() -> None:
    async with serving(_tokens()) as peer, AsyncClient(peer.url, username="u", password="right") as client:
        await asyncio.gather(*(client.status.ping() for _ in range(5)))
    logins = [asked for asked in peer.asked if asked.target.endswith("/token")]
    assert len(logins) == 1
    assert logins[0].json()["grant_type"] == "password"
    assert "authorization" not in logins[0].headers


async def test_refused_token_is_renewed_once() -> None:
    script = _tokens()
    async with serving(script) as peer, AsyncClient(peer.url, username="u", password="right") as client:
        await client.status.ping()
        script(Asked("POST", "/token", {}, b'{"password":"right"}'))  # t2 takes the place of t1
        await client.status.ping()
    assert [asked.target.rsplit("/")[-1] for asked in peer.asked] == [
        "token",
        "ping",
        "ping",
        "token",
        "ping",
    ]


async def test_short_lived_token_is_renewed_before_its_end() -> None:
    async with (
        serving(_tokens(lifetime_s=1)) as peer,
        AsyncClient(peer.url, username="u", password="right") as client,
    ):
        await client.status.ping()
        await asyncio.sleep(0.85)
        await client.status.ping()
    assert [asked.target.rsplit("/")[-1] for asked in peer.asked] == ["token", "ping", "token", "ping"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_identity_tokens_are_asked_for_whenever_one_is_needed(is_async: bool) -> None:
    given: list[str] = []

    def fresh() -> str:
        given.append(f"identity-{len(given)}")
        return given[-1]

    async def fresh_later() -> str:
        return fresh()

    def answer(asked: Asked) -> Answer:
        if asked.target.endswith("/token"):
            body = {"access_token": asked.json()["token"], "token_type": "Bearer", "expires_in": 3600}
            return Answer(200, body)
        if asked.headers["authorization"] == "Bearer identity-0":
            return error(401, "invalid_token")
        return Answer(200, {"current_time": 5})

    async with (
        serving(answer) as peer,
        AsyncClient(peer.url, identity_token=fresh_later if is_async else fresh) as client,
    ):
        assert await client.status.ping() == 5
    grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    sent = [asked.json() for asked in peer.asked if asked.target.endswith("/token")]
    assert sent == [
        {"grant_type": grant, "client_id": "WebProducerDashboard", "token": token} for token in given
    ]
    assert given == ["identity-0", "identity-1"]


async def test_one_identity_token_does_too() -> None:
    async with (
        serving(
            lambda _: Answer(200, {"access_token": "a", "token_type": "Bearer", "expires_in": 9})
        ) as peer,
        AsyncClient(peer.url, identity_token="signed") as client,
    ):
        await client.tokens.create()
    assert peer.asked[0].json()["token"] == "signed"


async def test_wrong_password_is_told_at_once() -> None:
    async with serving(_tokens()) as peer, AsyncClient(peer.url, username="u", password="no") as client:
        with pytest.raises(BadCredentials):
            await client.status.ping()
    assert len(peer.asked) == 1


async def test_refused_token_without_a_password_is_raised() -> None:
    async with serving(_tokens()) as peer, AsyncClient(peer.url, token="old") as client:
        with pytest.raises(Unauthenticated):
            await client.status.ping()
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    "options", [{"username": "u"}, {"password": "p"}, {"token": "t", "username": "u", "password": "p"}]
)
async def test_credentials_must_fit_together(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="username"):
        AsyncClient("http://demo.localhost:1", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b"<html>", [], {"version": "1"}, None])
async def test_answer_of_no_broker_breaks_the_protocol(body: Any) -> None:
    async with serving(lambda asked: Answer(200, body)) as peer, AsyncClient(peer.url) as client:
        with pytest.raises(ProtocolError):
            await client.status.get_version()


async def test_batch_keeps_its_order() -> None:
    async with (
        serving(lambda asked: Answer(201, {"events": [event(1), event(2)]})) as peer,
        AsyncClient(peer.url) as client,
    ):
        events = await client.events.publish_batch("final", [NewEvent("A#b"), NewEvent("C#d", timecode=3)])
    assert peer.asked[0].json() == {"events": [{"event": "A#b"}, {"event": "C#d", "timecode": 3}]}
    assert [one.seq for one in events] == [1, 2]


async def test_filters_leave_out_what_is_not_given() -> None:
    page = {"items": [], "total": 0, "limit": 5, "skip": 0}
    async with serving(lambda asked: Answer(200, page)) as peer, AsyncClient(peer.url) as client:
        await client.programs.filter(live=True, ids=["a", "b"], limit=5)
    assert peer.asked[0].target == "/api/v1/programs/filter?ids=a%2Cb&limit=5&live=true"


@pytest.mark.parametrize("program_id", ["", ".", ".."])
async def test_id_that_would_vanish_from_the_path_is_refused(program_id: str) -> None:
    async with AsyncClient("http://demo.localhost:1") as client:
        with pytest.raises(ValueError, match="cannot be an id"):
            await client.programs.get(program_id)


async def test_id_cannot_leave_its_place_in_the_path() -> None:
    async with serving(lambda asked: error(404, "not_found")) as peer, AsyncClient(peer.url) as client:
        with pytest.raises(NotFound):
            await client.programs.get("a/b?c")
    assert peer.asked[0].target == "/api/v1/programs/a%2Fb%3Fc"


async def test_update_tells_apart_absent_and_none() -> None:
    async with serving(lambda asked: Answer(200, event(1))) as peer, AsyncClient(peer.url) as client:
        await client.events.update("final", "x", metadata=None)
        await client.events.update("final", "x", timecode=3)
    assert [asked.json() for asked in peer.asked] == [{"metadata": None}, {"timecode": 3}]


async def test_import_of_events_is_streamed_as_one_document() -> None:
    result = {"deleted": 0, "imported": 2, "epoch": "e2"}
    told: list[int] = []
    async with serving(lambda asked: Answer(200, result)) as peer, AsyncClient(peer.url) as client:
        given: list[NewEvent | dict[str, str]] = [NewEvent("A#b", {"n": 1}), {"event": "C#d"}]
        events = (item for item in given)
        assert (await client.events.import_all("final", events, progress=told.append)).imported == 2
    assert peer.asked[0].json() == {"events": [{"event": "A#b", "metadata": {"n": 1}}, {"event": "C#d"}]}
    assert told == [len(peer.asked[0].body)]


async def test_import_of_a_file_is_tried_again_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    file.write_bytes(b'{"events":[]}' + b" " * 300_000)
    script = _sequence(error(503, "unavailable"), Answer(200, {"deleted": 1, "imported": 0, "epoch": "e"}))
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        await client.events.import_all("final", file)
    assert [len(asked.body) for asked in peer.asked] == [300_013, 300_013]
    assert peer.asked[0].headers["content-length"] == "300013"


async def test_import_of_an_iterator_is_tried_once() -> None:
    async with (
        serving(_sequence(error(503, "unavailable"))) as peer,
        AsyncClient(peer.url, retry=QUICK) as client,
    ):
        with pytest.raises(Unavailable):
            await client.events.import_all("final", iter([NewEvent("A#b")]))


def _page(cursor: str | None, *seqs: int) -> Answer:
    link = {} if cursor is None else {"Link": f'</api/v1/any?cursor={cursor}>; rel="next"'}
    return Answer(200, [event(seq) for seq in seqs], link)


async def test_events_are_iterated_page_by_page() -> None:
    script = _sequence(_page("a-b_", 1, 2), _page("c", 3), _page(None))
    async with serving(script) as peer, AsyncClient(peer.url) as client:
        seqs = [one.seq async for one in client.events.iterate("final")]
    assert seqs == [1, 2, 3]
    path = "/api/v1/programs/final/events?limit=1000"
    assert [asked.target for asked in peer.asked] == [path, f"{path}&cursor=a-b_", f"{path}&cursor=c"]


async def test_events_that_are_replaced_while_they_are_read_are_read_anew() -> None:
    script = _sequence(_page("a", 1, 2), error(409, "conflict"), _page("b", 1), _page(None, 2))
    async with serving(script) as peer, AsyncClient(peer.url) as client:
        events = await client.events.list("final", from_timecode=5)
    assert [one.seq for one in events] == [1, 2]
    assert peer.asked[2].target == "/api/v1/programs/final/events?limit=1000&from=5"


async def test_export_raises_the_brokers_error() -> None:
    async with serving(_sequence(error(404, "not_found"))) as peer, AsyncClient(peer.url) as client:
        with pytest.raises(NotFound):
            [chunk async for chunk in client.events.export_all("final")]
