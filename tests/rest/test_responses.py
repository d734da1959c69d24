"""Audience answers over HTTP: taking them, live results, the report."""

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import httpx
import pytest

from broker.errors import Unavailable
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from broker.storage.idempotency import Idempotency
from broker.voting.polls.audience import build_audience
from tests.auth.services import StoppedClock
from tests.product import Product, app_of
from tests.rest.support import field
from tests.test_queries import Statements

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ENDED_MS = 12_001  # BROKER_PUBLISH_TIMEOUT_S and two seconds
FINAL = "public, max-age=60, s-maxage=60"
ASKED = {"title": "Who wins?", "options": ["Home", {"label": "Away"}, "Draw"]}


class Vote:
    """A program with an event that asks something, and callers of its routes."""

    def __init__(self, product: Product, program: str, context: str, project: str) -> None:
        self.product, self.program, self.context, self.project = product, program, context, project

    def answer(self, visitor: str, value: Any = 0, **fields: Any) -> dict[str, Any]:
        entry = {"measureName": "whoWins", "contextId": self.context, "visitorId": visitor}
        return entry | {"measureValue": value} | fields

    def impression(self, visitor: str, session: str, **fields: Any) -> dict[str, Any]:
        return {
            "measureName": "whoWins", "contextId": self.context, "visitorId": visitor, "sessionId": session,
        } | fields  # fmt: skip

    async def post(
        self,
        *responses: Any,
        impressions: Any = (),
        role: str | None = None,
        place: str | None = None,
        **headers: str,
    ) -> Any:
        place = place or f"demo/{self.project}/{self.program}"
        body = {"responses": list(responses), "impressions": list(impressions)}
        async with self.product.door(role, **headers) as door:
            return await door.post(f"/responses/{place}", json=body)

    async def count(self, *responses: Any, impressions: Any = ()) -> tuple[int, int]:
        answer = await self.post(*responses, impressions=impressions)
        assert answer.status_code == 202, answer.text
        return answer.json()["accepted"], answer.json()["duplicates"]

    async def get(self, path: str, role: str | None = None, **query: str) -> Any:
        headers = {"If-None-Match": query.pop("known")} if "known" in query else {}
        async with self.product.door(role, **headers) as door:
            return await door.get(f"/responses/demo/{path}", params=query)

    async def results(self, name: str = "whoWins", **query: str) -> Any:
        self.product.clock.forward_ms += 1_000  # what a process remembers of results is gone
        answer = await self.get(f"{name}/results", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()


_programs = 0


@pytest.fixture
async def ask(product: Product) -> Any:
    """Makes votes: a program with an event of this metadata."""

    async def make(asked: dict[str, Any] = ASKED, /, **program: Any) -> Vote:
        global _programs
        _programs += 1
        program_id = f"vote{_programs}"
        await product.make_program(program_id, **program)
        (event,) = await product.publish(program_id, {"event": "Vote#ask", "metadata": asked})
        return Vote(product, program_id, event["id"], program.get("projectId") or "undefined")

    return make


async def test_answers_are_counted(ask: Any) -> None:
    vote = await ask()
    assert await vote.count(vote.answer("a"), vote.answer("b", 2), vote.answer("c", [0, 2])) == (3, 0)
    results = await vote.results(programId=vote.program)
    assert results == {
        "accountId": "demo", "measureName": "whoWins", "results": {"0": 2, "1": 0, "2": 2}, "total": 4,
    }  # fmt: skip


async def test_the_first_answer_of_a_visitor_stands(ask: Any) -> None:
    vote = await ask()
    assert await vote.count(vote.answer("a", 0), vote.answer("a", 1)) == (1, 1)
    assert await vote.count(vote.answer("a", 1), vote.answer("b", 1)) == (1, 1)
    assert (await vote.results(programId=vote.program))["results"] == {"0": 1, "1": 1, "2": 0}


async def test_where_it_may_be_changed_the_last_answer_stands(ask: Any) -> None:
    vote = await ask(ASKED | {"allowChange": True})
    assert await vote.count(vote.answer("a", 0), vote.answer("a", 1), vote.answer("a", 1)) == (2, 1)
    assert (await vote.results(programId=vote.program))["results"] == {"0": 0, "1": 1, "2": 0}


async def test_measures_and_contexts_are_polls_of_their_own(ask: Any, product: Product) -> None:
    vote = await ask()
    (other,) = await product.publish(vote.program, {"event": "Vote#ask", "metadata": {"options": ["x"] * 5}})
    entries = [
        vote.answer("a"),
        vote.answer("a", measureName="m"),
        vote.answer("a", 4, contextId=other["id"]),
    ]
    assert await vote.count(*entries) == (3, 0)
    assert (await vote.results(programId=vote.program))["results"] == {"0": 1, "1": 0, "2": 0, "3": 0, "4": 1}
    limited = await vote.results(contextId=vote.context, programId=vote.program)
    assert (limited["contextId"], limited["total"]) == (vote.context, 1)


async def test_the_spelling_of_an_event_makes_no_second_poll(ask: Any) -> None:
    vote = await ask()
    assert await vote.count(vote.answer("a"), vote.answer("a", contextId=vote.context.upper())) == (1, 1)


async def test_batch_with_a_key_counts_once(ask: Any, product: Product) -> None:
    vote = await ask(projectId="own")
    shown, key = [vote.impression("a", "1"), vote.impression("a", "2")], {"Idempotency-Key": "batch"}
    first = await vote.post(vote.answer("a"), impressions=shown, **key)
    again = await vote.post(vote.answer("a"), impressions=shown, **key)
    assert (first.status_code, first.json()) == (202, {"accepted": 3, "duplicates": 0})
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert (await vote.post(vote.answer("b"), impressions=shown, **key)).status_code == 409
    (entry,) = (await vote.get(f"own/{vote.program}/report", role="user")).json()["responses"]
    assert (entry["total"], entry["impressions"]["total"]) == (1, 2)


async def test_batch_that_was_counted_before_its_key_was_kept_counts_once(
    ask: Any, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    vote, key = await ask(projectId="own"), {"Idempotency-Key": "half"}

    def away(*_: object) -> None:
        raise Unavailable("the database is away", retry_after_s=1)

    with monkeypatch.context() as patch:
        patch.setattr(Idempotency, "once", away)
        lost = await vote.post(impressions=[vote.impression("a", "1")], **key)
    assert (lost.status_code, lost.json()["error"]) == (503, "outcome_unknown")
    again = await vote.post(impressions=[vote.impression("a", "1")], **key)
    assert (again.status_code, again.json()) == (202, {"accepted": 1, "duplicates": 0})
    (entry,) = (await vote.get(f"own/{vote.program}/report", role="user")).json()["responses"]
    assert entry["impressions"]["total"] == 1


async def test_impressions_are_told_in_the_report(ask: Any, product: Product) -> None:
    vote = await ask(projectId="own")
    shown = [vote.impression("a", "1"), vote.impression("a", "2"), vote.impression("b", "2")]
    assert await vote.count(vote.answer("a", 1), impressions=shown) == (4, 0)
    assert await vote.count(impressions=shown[:1]) == (1, 0)
    answer = await vote.get(f"own/{vote.program}/report", "user")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "accountId": "demo",
        "projectId": "own",
        "programId": vote.program,
        "responses": [
            {
                "measureName": "whoWins",
                "isDeclared": True,
                "programId": vote.program,
                "contextId": vote.context,
                "options": [
                    {"measureValue": 0, "total": 0, "label": "Home"},
                    {"measureValue": 1, "total": 1, "label": "Away"},
                    {"measureValue": 2, "total": 0, "label": "Draw"},
                ],
                "total": 1,
                "title": "Who wins?",
                "impressions": {"measureName": "whoWins", "total": 4, "uniques": 2, "sessions": 2},
            }
        ],
    }


async def test_empty_lists_are_fine_and_none_is_not(ask: Any, product: Product) -> None:
    vote = await ask()
    assert await vote.count() == (0, 0)
    async with product.door(None) as door:
        path = f"/responses/demo/undefiend/{vote.program}"
        answer = await door.post(path, json={"responses": []})
        refused = [await door.post(path), await door.post(path, json={})]
    assert (answer.status_code, answer.json()) == (202, {"accepted": 0, "duplicates": 0})
    assert [(each.status_code, field(each)) for each in refused] == [(400, "responses")] * 2
    assert (await vote.get(f"undefined/{vote.program}/report", "user")).json()["responses"] == []


@pytest.mark.parametrize(
    "place",
    ["other/undefined/{}", "demo/own/{}", "demo/undefined/unknown"],
)
async def test_what_is_not_there_is_not_found(ask: Any, place: str) -> None:
    vote = await ask()
    answer = await vote.post(vote.answer("a"), place=place.format(vote.program))
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


async def test_a_project_is_said_as_the_program_has_it(ask: Any) -> None:
    vote = await ask(projectId="own")
    for project, status in (("own", 202), ("other", 404), ("undefined", 404)):
        assert (await vote.post(place=f"demo/{project}/{vote.program}")).status_code == status
        report = await vote.get(f"{project}/{vote.program}/report", "user")
        assert report.status_code == (200 if status == 202 else 404)


async def test_a_private_program_is_for_those_who_read_it(ask: Any) -> None:
    vote = await ask(access="private")
    for role, status in ((None, 404), ("client", 404), ("user", 202), ("admin", 202)):
        assert (await vote.post(vote.answer("a"), role=role)).status_code == status


async def test_a_bad_token_is_refused_where_none_is_needed(ask: Any) -> None:
    vote = await ask()
    assert (await vote.post(vote.answer("a"), Authorization="Bearer x")).status_code == 401


async def test_one_bad_entry_refuses_all(ask: Any) -> None:
    vote = await ask()
    entries = [vote.answer("a"), vote.answer("b", 3), vote.answer("c", contextId="none")]
    answer = await vote.post(*entries, impressions=[vote.impression("a", "1", contextId="no")])
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["errors"]] == [
        "responses[1].measureValue", "responses[2].contextId", "impressions[0].contextId",
    ]  # fmt: skip
    answer = await vote.post(vote.answer("a"), vote.answer("b", visitorId=""))
    assert [fault["field"] for fault in answer.json()["errors"]] == ["responses[1].visitorId"]
    assert (await vote.results(programId=vote.program))["total"] == 0


async def test_the_measure_that_the_event_declares_is_told_from_a_strangers(ask: Any) -> None:
    vote = await ask()
    asked = {"programId": vote.program, "contextId": vote.context}
    assert (await vote.results(**asked))["isDeclared"] is True  # before anybody has answered, too
    await vote.count(vote.answer("stranger", 1, measureName="whoWins2"))
    await vote.count(vote.answer("a", 0))
    report = (await vote.get(f"undefined/{vote.program}/report", "admin")).json()["responses"]
    polls = (await vote.get(f"undefined/{vote.program}/integrity", "admin")).json()["polls"]
    for entries in (report, polls):
        assert {each["measureName"]: each["isDeclared"] for each in entries} == {
            "whoWins2": False,
            "whoWins": True,
        }
    assert (await vote.results(**asked))["isDeclared"] is True
    assert (await vote.results("whoWins2", **asked))["isDeclared"] is False
    assert (await vote.results("unheard", **asked))["isDeclared"] is False
    assert "isDeclared" not in await vote.results(programId=vote.program)


async def test_without_declared_options_any_index_counts(ask: Any) -> None:
    vote = await ask({"title": "Who wins?"})
    assert await vote.count(vote.answer("a", 999)) == (1, 0)
    assert (await vote.results(programId=vote.program))["results"] == {"999": 1}
    report = (await vote.get(f"undefined/{vote.program}/report", "admin")).json()
    assert report["responses"][0]["options"] == [{"measureValue": 999, "total": 1, "label": "999"}]


@pytest.mark.parametrize(("options", "last"), [(["Home", None, {"text": "x"}], 2), ("Home", None)])
async def test_a_slip_in_the_options_leaves_no_other_index_open(
    ask: Any, options: Any, last: int | None
) -> None:
    vote = await ask(ASKED | {"options": options})
    answer = await vote.post(vote.answer("a", 0 if last is None else last + 1))
    assert answer.status_code == 400
    message = f"must be an option of the event, 0 to {last}"
    if last is None:
        message = "cannot be chosen: the event's options are no list, or one of too many"
    assert answer.json()["errors"] == [{"field": "responses[0].measureValue", "message": message}]
    asked = {"programId": vote.program, "contextId": vote.context}
    if last is not None:
        assert await vote.count(vote.answer("a", last)) == (1, 0)
        assert (await vote.results(**asked))["results"] == {"0": 0, "1": 0, "2": 1}
        (entry,) = (await vote.get(f"undefined/{vote.program}/report", "admin")).json()["responses"]
        assert [each["label"] for each in entry["options"]] == ["Home", "1", "2"]
    else:
        assert (await vote.results(**asked))["results"] == {}


async def test_free_contexts_need_no_event(ask: Any) -> None:
    vote = await ask(metadata={"freeContexts": True})
    assert await vote.count(vote.answer("a", 7, contextId="round 1")) == (1, 0)
    assert (await vote.post(vote.answer("a", 3))).status_code == 400  # an event's options count there too


async def test_answers_are_taken_from_opening_to_closing(ask: Any, product: Product) -> None:
    product.clock.stop()
    now, before_ms = product.services.clock.now_ms(), product.clock.forward_ms
    vote = await ask(ASKED | {"opens": now + 5_000, "closes": now + 9_000})
    for forward_ms, status in ((4_999, 409), (5_000, 202), (8_999, 202), (9_000, 409)):
        product.clock.forward_ms = before_ms + forward_ms
        answer = await vote.post(vote.answer("a"), impressions=[vote.impression("a", "1")])
        assert answer.status_code == status, forward_ms
    assert answer.json()["error"] == "conflict"
    assert answer.json()["errors"] == [{"field": "responses[0].contextId", "message": "voting is closed"}]
    assert await vote.count(impressions=[vote.impression("b", "1")]) == (1, 0)


async def test_a_counted_vote_that_is_repeated_after_the_closing_has_its_result_under_a_key_only(
    ask: Any, product: Product
) -> None:
    vote = await ask(ASKED | {"closes": product.services.clock.now_ms() + 60_000})
    plain, keyed = vote.answer("plain"), vote.answer("keyed")
    first = [await vote.post(plain), await vote.post(keyed, **{"Idempotency-Key": "vote"})]
    assert [each.status_code for each in first] == [202, 202]
    for forward_ms in (60_000, ENDED_MS):  # closed, and final
        product.clock.forward_ms += forward_ms
        again = [await vote.post(plain), await vote.post(keyed, **{"Idempotency-Key": "vote"})]
        assert [each.status_code for each in again] == [409, 202]
        assert again[1].content == first[1].content
    assert (await vote.results(programId=vote.program))["total"] == 2


async def test_results_may_be_cached(ask: Any, product: Product) -> None:
    now = product.services.clock.now_ms()
    vote = await ask(ASKED | {"closes": now + 600_000})
    query = {"programId": vote.program, "contextId": vote.context}
    await vote.count(vote.answer("a"))
    first = await vote.get("whoWins/results", **query)
    assert first.headers["cache-control"] == "public, max-age=1, s-maxage=5"
    assert first.headers["access-control-allow-origin"] == "*"
    assert first.headers["etag"].startswith('"')
    same = await vote.get("whoWins/results", known=first.headers["etag"], **query)
    assert (same.status_code, same.content) == (304, b"")
    for answer in (first, same):
        assert "vary" not in answer.headers
        assert "set-cookie" not in answer.headers
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["cache-control"] == first.headers["cache-control"]
    product.clock.forward_ms += 600_000
    just_closed = await vote.get("whoWins/results", **query)
    assert just_closed.headers["cache-control"] == "public, max-age=1, s-maxage=5"
    product.clock.forward_ms += ENDED_MS
    closed = await vote.get("whoWins/results", **query)
    assert closed.headers["cache-control"] == "public, max-age=60, s-maxage=60"


async def test_votes_under_way_at_the_closing_are_in_the_final_result(
    ask: Any, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is committed while the result is sealed counts in it, and one that comes later is refused."""
    vote = await ask(ASKED | {"closes": product.services.clock.now_ms() + 60_000})
    query = {"programId": vote.program, "contextId": vote.context}
    await vote.count(vote.answer("a"))
    counters: Any = product.services.audience.counters
    submit, accepted, may_go = counters.submit, asyncio.Event(), asyncio.Event()

    async def late(entries: Any, key: Any) -> Any:
        accepted.set()
        await may_go.wait()
        return await submit(entries, key)

    with monkeypatch.context() as patch:
        patch.setattr(counters, "submit", late)
        voting = asyncio.create_task(vote.post(vote.answer("late")))
        await accepted.wait()
    product.clock.forward_ms += 60_000
    closed = await vote.get("whoWins/results", **query)
    assert closed.headers["cache-control"] != FINAL
    product.clock.forward_ms += ENDED_MS
    final = await vote.get("whoWins/results", **query)
    assert final.headers["cache-control"] == FINAL
    may_go.set()
    refused = await voting
    assert (refused.status_code, refused.json()["error_description"]) == (409, "voting is closed")
    assert (await vote.results(**query))["results"] == final.json()["results"] == {"0": 1, "1": 0, "2": 0}


async def test_votes_for_a_poll_that_was_lost_are_not_counted_in_another(ask: Any, module_dsn: str) -> None:
    """The database was restored to a moment between the question and the first vote."""
    lost, other = await ask(), await ask()
    connection = await asyncpg.connect(module_dsn)
    name = await connection.fetchval("SELECT pg_get_serial_sequence('answer_polls', 'uid')")
    before = await connection.fetchrow(f"SELECT last_value, is_called FROM {name}")
    await lost.count(lost.answer("ann"))
    await connection.execute("DELETE FROM answer_polls WHERE context = $1", lost.context)
    await connection.execute("SELECT setval($1::text::regclass, $2, $3)", name, *before)
    await connection.close()
    await other.count(other.answer("bob"))
    await lost.post(lost.answer("eve", 1))  # by the number that this process remembers
    assert await lost.count(lost.answer("eve", 1)) == (1, 0)
    for vote, counted in ((other, {"0": 1, "1": 0, "2": 0}), (lost, {"0": 0, "1": 1, "2": 0})):
        results = await vote.results(programId=vote.program, contextId=vote.context)
        assert results["results"] == counted


async def test_a_commit_under_way_is_in_the_final_result(ask: Any, product: Product, module_dsn: str) -> None:
    vote = await ask(ASKED | {"closes": product.services.clock.now_ms() + 60_000})
    query = {"programId": vote.program, "contextId": vote.context}
    await vote.count(vote.answer("a"))
    connection = await asyncpg.connect(module_dsn)
    async with connection.transaction():
        # As a commit does that hangs before its end.
        await connection.execute(
            "WITH held AS (SELECT uid FROM answer_polls WHERE context = $1 FOR KEY SHARE)"
            " UPDATE answer_tallies SET totals = '{2}' FROM held WHERE poll = uid",
            vote.context,
        )
        product.clock.forward_ms += 60_000 + ENDED_MS
        reading = asyncio.create_task(vote.get("whoWins/results", **query))
        assert not (await asyncio.wait([reading], timeout=0.5))[0]
    final = await reading
    await connection.close()
    assert (final.headers["cache-control"], final.json()["total"]) == (FINAL, 2)


async def test_a_result_without_answers_is_final_too(ask: Any, product: Product) -> None:
    vote = await ask(ASKED | {"closes": product.services.clock.now_ms() + 60_000}, projectId="own")
    product.clock.forward_ms += 60_000 + ENDED_MS
    final = await vote.get("whoWins/results", programId=vote.program, contextId=vote.context)
    assert (final.headers["cache-control"], final.json()["total"]) == (FINAL, 0)
    assert (await vote.get(f"own/{vote.program}/report", role="user")).json()["responses"] == []


async def test_a_poll_that_is_opened_again_takes_votes_and_is_not_final(ask: Any, product: Product) -> None:
    metadata = ASKED | {"closes": product.services.clock.now_ms() + 60_000}
    vote = await ask(metadata)
    query = {"programId": vote.program, "contextId": vote.context}
    await vote.count(vote.answer("a"))
    product.clock.forward_ms += 60_000 + ENDED_MS
    assert (await vote.get("whoWins/results", **query)).headers["cache-control"] == FINAL
    async with product.door() as door:
        changed = {"metadata": metadata | {"closes": product.services.clock.now_ms() + 60_000}}
        await door.put(f"/programs/{vote.program}/events/{vote.context}", json=changed)
    product.clock.forward_ms += 2_000
    again = await vote.get("whoWins/results", **query)
    assert again.headers["cache-control"] != FINAL
    for _ in range(2):
        headers = {"Idempotency-Key": "again"}
        answer = await vote.post(vote.answer("b"), vote.answer("c"), **headers)
        assert (answer.status_code, answer.json()) == (202, {"accepted": 2, "duplicates": 0})
    assert (await vote.results(**query))["total"] == 3


async def test_results_are_closed_when_all_their_contexts_are(ask: Any, product: Product) -> None:
    now = product.services.clock.now_ms()
    vote = await ask(ASKED | {"closes": now + 60_000})
    (other,) = await product.publish(vote.program, {"event": "Vote#ask", "metadata": ASKED})
    await vote.count(vote.answer("a"), vote.answer("a", contextId=other["id"]))
    product.clock.forward_ms += 60_000 + ENDED_MS
    running = await vote.get("whoWins/results", programId=vote.program)
    assert running.headers["cache-control"] == "public, max-age=1, s-maxage=5"


async def test_unknown_names_have_zeros(ask: Any) -> None:
    vote = await ask()
    assert await vote.results("nothing") == {
        "accountId": "demo", "measureName": "nothing", "results": {}, "total": 0,
    }  # fmt: skip
    asked = await vote.results(programId=vote.program, contextId=vote.context)
    assert (asked["results"], asked["total"]) == ({"0": 0, "1": 0, "2": 0}, 0)
    assert (await vote.get("a b/results")).status_code == 200
    async with vote.product.door(None) as door:
        assert (await door.get("/responses/other/whoWins/results")).status_code == 404


NOBODY = "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"
ZEROS = {"0": 0, "1": 0, "2": 0}


@pytest.mark.parametrize("access", ["public", "private"])
async def test_what_a_context_declares_has_zeros_and_what_selects_nothing_is_empty(
    ask: Any, access: str
) -> None:
    """A program that is not there answers as a private one does, so that nobody learns which it is."""
    vote, other = await ask(projectId="own", access=access), await ask()
    name, context = {"programId": vote.program}, {"contextId": vote.context}
    for limits, expected in (
        (name | context, ZEROS),
        (context, ZEROS),
        (context | {"contextId": vote.context.upper()}, ZEROS),
        (context | {"projectId": "own"}, ZEROS),
        (name | context | {"projectId": "own"}, ZEROS),
        (context | {"projectId": "undefined"}, {}),
        (context | {"programId": other.program}, {}),
        (context | {"programId": "nothing"}, {}),
        (name | {"contextId": NOBODY}, {}),
        (name | {"contextId": "final"}, {}),
        ({"contextId": NOBODY}, {}),
        ({"contextId": "final"}, {}),
        (name, {}),
        ({"programId": "nothing"}, {}),
        ({"projectId": "nothing"}, {}),
    ):
        told = await vote.results(**limits)
        assert (told["results"], told["total"]) == (expected, 0), limits
        assert (await vote.results("nothing", **limits))["results"] == {}, limits
    assert (await vote.post(vote.answer("a"), role="admin")).status_code == 202
    for limits in (name, context, name | context):
        assert (await vote.results(**limits))["results"] == ZEROS | {"0": 1}


async def test_a_context_of_another_account_declares_nothing(ask: Any, product: Product) -> None:
    vote = await ask()
    async with product.door(None, account="other") as door:
        answer = await door.get("/responses/other/whoWins/results", params={"contextId": vote.context})
    assert answer.json()["results"] == {}


async def test_a_result_that_nobody_voted_for_becomes_final_by_its_context_alone(
    ask: Any, product: Product
) -> None:
    vote = await ask(ASKED | {"closes": product.clock.now_ms() + 60_000})
    product.clock.forward_ms += 60_000 + ENDED_MS
    final = await vote.get("whoWins/results", contextId=vote.context)
    assert (final.json()["results"], final.headers["cache-control"]) == (ZEROS, FINAL)


@pytest.mark.parametrize("field", ["programId", "projectId", "contextId", "program"])
async def test_a_limit_that_cannot_be_is_named(ask: Any, field: str) -> None:
    vote = await ask()
    refused = await vote.get("whoWins/results", **{field: "\u200b"})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_request")
    assert [fault["field"] for fault in refused.json()["errors"]] == [field]


async def test_results_are_limited_to_a_project(ask: Any) -> None:
    name = "limited"
    mine, free = await ask(projectId="own"), await ask()
    for vote in (mine, free):
        await vote.count(vote.answer("a", measureName=name))
    assert (await mine.results(name))["total"] == 2
    for project in ("own", "undefined", "undefiend"):
        limited = await mine.results(name, projectId=project)
        assert (limited["projectId"], limited["total"]) == (project, 1)
    assert (await mine.results(name, projectId="none"))["total"] == 0


async def test_batches_end_at_their_limit(ask: Any, product: Product) -> None:
    vote = await ask()
    vote.product = product.with_settings(batch_limit_responses=3)
    entries = [vote.answer(name) for name in "abc"]
    assert await vote.count(*entries) == (3, 0)
    answer = await vote.post(*entries, impressions=[vote.impression("a", "1")])
    assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")


async def test_deleted_programs_take_no_answers(ask: Any, product: Product) -> None:
    vote = await ask()
    await vote.count(vote.answer("a"))
    async with product.door() as door:
        await door.delete(f"/programs/{vote.program}")
    assert (await vote.post(vote.answer("b"))).status_code == 404
    product.clock.forward_ms += 1_000
    assert (await vote.post(vote.answer("b"))).status_code == 404


async def test_what_was_accepted_is_in_the_statistics(ask: Any, product: Product) -> None:
    vote = await ask(projectId="own")
    await vote.count(vote.answer("a"), vote.answer("a"), impressions=[vote.impression("a", "1")])
    recorder = product.services.recorder
    assert recorder is not None
    await recorder.flush()
    async with product.door("user") as door:
        series = (await door.get(f"/statistics/filtered?programId={vote.program}")).json()["series"]
    assert sum(point["responses"] for point in series) == 1
    assert sum(point["impressions"] for point in series) == 1


async def test_an_address_has_its_rate(ask: Any, product: Product) -> None:
    clock = StoppedClock()
    audience = replace(product.services.audience, per_address=LocalRate(clock, Rate(2, 10)))
    services = replace(product.services, audience=audience)
    vote = await ask()
    vote.product = replace(product, services=services, app=app_of(services))
    entries = [vote.answer(f"v{n}") for n in range(8)]
    shown = [vote.impression("a", "1")] * 2
    here, there = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
    assert (await vote.post(*entries, impressions=shown, **here)).status_code == 202
    refused = await vote.post(entries[0], **here)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert (await vote.post(**here)).status_code == 429
    assert (await vote.post(entries[0], **there)).status_code == 202
    clock.ms += 500
    assert (await vote.post(entries[0], **here)).status_code == 202
    assert (await vote.post(entries[0], **here)).status_code == 429


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "again and again"}], ids=["plain", "with a key"])
@pytest.mark.parametrize("path", ["votes", "visitor"])
async def test_what_is_over_the_rate_of_its_address_costs_no_query(
    ask: Any, product: Product, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], path: str
) -> None:
    """Not for its key, and not for its poll, which is read again every other second."""
    audience = replace(product.services.audience, per_address=LocalRate(StoppedClock(), Rate(2, 1)))
    services = replace(product.services, audience=audience)
    vote = await ask()
    vote.product = replace(product, services=services, app=app_of(services))
    here = {"X-Forwarded-For": "192.0.2.1"}
    assert (await vote.post(vote.answer("a"), **here)).status_code == 202
    here |= headers
    product.clock.forward_ms += 5_000
    async with product.door(None) as door:  # what every request asks of its account
        assert (await door.get("/version")).status_code == 200
    statements = Statements()
    with statements.counted(monkeypatch):
        for number in range(20):
            if path == "visitor":
                async with vote.product.door(None, **here) as door:
                    refused = await door.post("/responses/visitor", json={})
            else:
                refused = await vote.post(vote.answer(f"v{number}"), **here)
            assert refused.status_code == 429
    assert statements.texts == []


def with_audience(product: Product, clock: Any = None, **settings: Any) -> Product:
    """The product with other settings of what answers share; its limits on rates go by `clock`."""
    known = replace(product.services.settings, **settings)
    services = replace(product.services, settings=known)
    audience = build_audience(
        known, clock or services.clock, services.database, services.audience.counters, services.owners
    )
    services = replace(services, audience=audience)
    return replace(product, services=services, app=app_of(services))


async def test_a_context_has_room_for_what_it_declares_and_twenty_other_names(
    ask: Any, product: Product
) -> None:
    """Whatever others invent, here or in another context."""
    vote = await ask()
    asked = {"event": "Poll#show", "metadata": {"title": "Who else?"}}
    (other,) = await product.publish(vote.program, asked)
    (silent,) = await product.publish(vote.program, {"event": "Clock#set"})
    for number in range(20):
        assert await vote.count(vote.answer("a", measureName=f"m{number}")) == (1, 0)
    for entries in (
        [vote.answer("b", measureName="m20")],
        [vote.answer("b", measureName="m1"), vote.answer("b", measureName="m20")],
    ):
        answer = await vote.post(*entries)
        assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")
        assert [fault["field"] for fault in answer.json()["errors"]] == [
            f"responses[{len(entries) - 1}].measureName"
        ]
    assert await vote.count(vote.answer("b"), vote.answer("b", measureName="m1")) == (2, 0)
    names = [f"n{number}" for number in range(19)]
    entries = [vote.answer("c", measureName=name, contextId=other["id"]) for name in (*names, "whoElse")]
    assert await vote.count(*entries) == (20, 0)
    entries = [vote.answer("c", measureName=name, contextId=silent["id"]) for name in (*names, "m", "o")]
    assert (await vote.post(*entries)).status_code == 413
    assert await vote.count(*entries[:20]) == (20, 0)


async def test_contexts_that_are_no_events_share_their_room(ask: Any, product: Product) -> None:
    await product.make_program("invented", metadata={"freeContexts": True})
    (event,) = await product.publish("invented", {"event": "Poll#show", "metadata": {"title": "Who?"}})
    small = with_audience(product, program_polls=5)

    async def post(context: str, *names: str) -> int:
        responses = [
            {"measureName": name, "contextId": context, "measureValue": 0, "visitorId": "v"} for name in names
        ]
        async with small.door(None) as door:
            path = "/responses/demo/undefined/invented"
            return (await door.post(path, json={"responses": responses})).status_code

    assert await post("a", "m", "n") == 202
    assert await post("b", "m", "n", "o") == 202
    assert await post("c", "m") == 413
    assert await post("a", "o") == 413
    assert await post(event["id"], "who", *(f"m{n}" for n in range(20))) == 202
    assert await post(event["id"], "m20") == 413


async def test_new_names_are_bounded_by_address(ask: Any, product: Product) -> None:
    clock = StoppedClock()
    vote = await ask()
    settings = {"responses_names_rate_per_address": 1.0, "responses_names_burst_per_address": 3}
    small = with_audience(product, clock, **settings)

    async def post(address: str, *names: str) -> int:
        transport = httpx.ASGITransport(small.app, client=(address, 1))
        body = {"responses": [vote.answer("v", measureName=name) for name in names]}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as door:
            return (await door.post(f"/responses/demo/undefined/{vote.program}", json=body)).status_code

    assert await post("192.0.2.1", "a", "b") == 202
    assert await post("192.0.2.1", "a", "b", "c") == 202
    assert await post("192.0.2.1", "d") == 429
    assert await post("192.0.2.1", "a", "c", "whoWins") == 202
    assert await post("192.0.2.2", "d") == 202
    clock.ms += 1_000
    assert await post("192.0.2.1", "e") == 202
