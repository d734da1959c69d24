"""Answers against a scripted peer: what is sent, what is repeated, what is read."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Answer as Response
from broker.client import (
    AsyncClient,
    Backoff,
    Counted,
    Impression,
    ProtocolError,
    RetryPolicy,
)
from tests.client.peer import Answer, Script, error, serving

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(deadline_s=2.0, timeout_s=2.0, backoff=Backoff(0.001, 0.01))
VOTE = Response("whoWins", "c", (0, 2), "v")
SHOWN = Impression("whoWins", "c", "v", "s")
COUNTED = Answer(202, {"accepted": 0, "duplicates": 1})


def _sequence(*answers: Answer) -> Script:
    """Answers one after the other; asked more often than that, it fails the test."""
    steps: Iterator[Answer] = iter(answers)
    return lambda asked: next(steps)


@pytest.mark.parametrize(("project", "part"), [(None, "undefined"), ("a/b", "a%2Fb")])
async def test_batch_names_account_project_and_program(project: str | None, part: str) -> None:
    async with serving(lambda asked: COUNTED) as peer, AsyncClient(peer.url) as client:
        assert await client.responses.add("final", [VOTE], [SHOWN], project_id=project) == Counted(0, 1)
    (asked,) = peer.asked
    assert (asked.method, asked.target) == ("POST", f"/api/v1/responses/demo/{part}/final")
    named = {"measureName": "whoWins", "contextId": "c", "visitorId": "v"}
    assert asked.json() == {
        "responses": [{**named, "measureValue": [0, 2]}],
        "impressions": [{**named, "sessionId": "s"}],
    }


@pytest.mark.parametrize("failure", [error(429, "x"), error(502, "x"), error(503, "x"), Answer(cut=True)])
async def test_answers_are_repeated_in_doubt(failure: Answer) -> None:
    script = _sequence(failure, failure, COUNTED)
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        assert await client.responses.add("final", [VOTE]) == Counted(0, 1)
    assert len({asked.body for asked in peer.asked}) == 1


@pytest.mark.parametrize("failure", [error(502, "x"), error(503, "outcome_unknown"), Answer(cut=True)])
async def test_impressions_are_repeated_in_doubt_under_one_key(failure: Answer) -> None:
    script = _sequence(failure, failure, COUNTED, COUNTED)
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        await client.responses.add("final", [VOTE], [SHOWN])
        await client.responses.add("final", [VOTE], idempotency_key="mine")
    keys = [asked.headers["idempotency-key"] for asked in peer.asked]
    assert keys[0] == keys[1] == keys[2] != keys[3] == "mine"


async def test_impressions_are_repeated_when_the_broker_asks_for_it() -> None:
    script = _sequence(error(503, "x"), COUNTED)
    async with serving(script) as peer, AsyncClient(peer.url, retry=QUICK) as client:
        await client.responses.add("final", impressions=[SHOWN])
    assert len(peer.asked) == 2


async def test_given_account_is_named() -> None:
    body = {"accountId": "arena", "measureName": "a", "results": {"0": 1, "10": 2}, "total": 3}
    async with (
        serving(lambda asked: Answer(200, body)) as peer,
        AsyncClient(peer.url, account="arena") as client,
    ):
        results = await client.responses.get_results("a?", program_id="final")
    assert peer.asked[0].target == "/api/v1/responses/arena/a%3F/results?programId=final"
    assert (results.results, results.context_id) == ({0: 1, 10: 2}, None)


@pytest.mark.parametrize("body", [None, {}, {"results": {"a": 1}}, {"responses": [{}]}, {"responses": 1}])
async def test_answer_of_no_broker_breaks_the_protocol(body: Any) -> None:
    async with serving(lambda asked: Answer(200, body)) as peer, AsyncClient(peer.url) as client:
        with pytest.raises(ProtocolError):
            await client.responses.add("final")
        with pytest.raises(ProtocolError):
            await client.responses.get_results("a")
        with pytest.raises(ProtocolError):
            await client.responses.get_report("final")
