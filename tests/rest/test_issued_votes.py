"""Votes of visitors whom the broker has handed out, the bounds on them, and what looks wrong in votes."""

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from broker.auth.issued_visitors import issue, read
from broker.domain.audit import Actor
from broker.errors import SlowDown
from broker.storage.visitor_rules import StoredRules, VisitorRules
from broker.voting.polls.audience import build_audience
from broker.voting.polls.visitor_admission import VisitorAdmission
from tests.auth.visitor_tokens import SECRET, signed
from tests.product import Product, app_of
from tests.rest.test_responses import ASKED, Vote, ask  # noqa: F401  # a fixture
from tests.storage.answers import until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ISSUED = ASKED | {"visitors": "issued"}
MONTH_MS = 30 * 86_400_000


async def visitor(product: Product, known: str | None = None) -> str:
    async with product.door(None) as door:
        answer = await door.post("/responses/visitor", json={} if known is None else {"visitorId": known})
    assert answer.status_code == 200, answer.text
    assert answer.json()["expires"] > product.clock.now_ms()
    return str(answer.json()["visitorId"])


async def integrity(vote: Vote, role: str | None = "admin") -> Any:
    await vote.product.services.audience.patterns.write()
    return await vote.get(f"{vote.project}/{vote.program}/integrity", role=role)


async def test_only_issued_visitors_count(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask(ISSUED)
    ada, ben = await visitor(product), await visitor(product)
    assert await vote.count(vote.answer(ada, 0), vote.answer(ben, 1)) == (2, 0)
    for wrong in ("ada", "A" * 44, signed("ada"), ada[:-1] + ("A" if ada[-1] != "A" else "B")):
        refused = await vote.post(vote.answer(await visitor(product)), vote.answer(wrong))
        assert refused.status_code == 400
        assert refused.json()["errors"][0]["field"] == "responses[1].visitorId"
    assert (await vote.results(programId=vote.program))["results"] == {"0": 1, "1": 1, "2": 0}


async def test_the_first_visitor_of_an_account_counts_in_every_process(
    ask: Any,  # noqa: F811
    product: Product,
) -> None:
    vote = await ask(ISSUED)
    services = product.services
    rules = StoredRules([], None, "any")
    await VisitorRules(services.database).change("demo", lambda _: rules, Actor.operator())
    product.clock.forward_ms += 5_001
    assert (await services.audience.visitors.rules("demo")).secret is None
    other = VisitorAdmission(services.settings, services.clock, services.database)
    token, _ = issue(await other.ensure_secret("demo"), "demo", services.clock.now_ms())
    await other.close()
    assert await vote.count(vote.answer(token)) == (1, 0)


async def test_visitors_count_at_once_after_all_issued_ones_were_dropped(
    ask: Any,  # noqa: F811
    product: Product,
) -> None:
    """A process that remembers the secret before neither refuses new visitors nor hands out old ones."""
    vote, services = await ask(ISSUED), product.services
    before = await visitor(product)
    stored = VisitorRules(services.database)
    other = VisitorAdmission(services.settings, services.clock, services.database)
    rules = await stored.get("demo")
    assert (await services.audience.visitors.rules("demo")).secret == rules.secret
    await stored.change("demo", lambda was: was._replace(secret=None), Actor.operator())
    by_other, _ = issue(await other.ensure_secret("demo"), "demo", services.clock.now_ms())
    assert await vote.count(vote.answer(by_other)) == (1, 0)
    await stored.change("demo", lambda was: was._replace(secret=None), Actor.operator())
    own = await visitor(product)
    renewed = await visitor(product, before)
    secret = await other.ensure_secret("demo")
    await other.close()
    for token in (own, renewed):
        assert len(read(token, secret, "demo", services.clock.now_ms())) == 12
        assert await vote.count(vote.answer(token)) == (1, 0)
    assert (await vote.post(vote.answer(before))).status_code == 400


async def test_dropped_visitors_count_no_longer_than_rules_are_remembered(
    ask: Any,  # noqa: F811
    product: Product,
) -> None:
    vote, stored = await ask(ISSUED), VisitorRules(product.services.database)
    ada, ben = await visitor(product), await visitor(product)
    await stored.change("demo", lambda was: was._replace(secret=None), Actor.operator())
    assert await vote.count(vote.answer(ada)) == (1, 0), "this process remembers"
    product.clock.forward_ms += 5_001
    assert (await vote.post(vote.answer(ben))).status_code == 400


async def test_a_key_signs_at_once_after_it_was_set(ask: Any, product: Product) -> None:  # noqa: F811
    vote, stored = await ask(ASKED | {"visitors": "signed"}), VisitorRules(product.services.database)
    await stored.change("demo", lambda was: was._replace(keys=[]), Actor.operator())
    product.clock.forward_ms += 5_001
    assert (await vote.post(vote.answer(signed("ada")))).status_code == 400
    await stored.change("demo", lambda was: was._replace(keys=[SECRET]), Actor.operator())
    assert await vote.count(vote.answer(signed("ada"))) == (1, 0)


async def test_a_renewed_visitor_is_the_same(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask(ISSUED)
    first = await visitor(product)
    assert await vote.count(vote.answer(first)) == (1, 0)
    product.clock.forward_ms += MONTH_MS - 60_000
    renewed = await visitor(product, first)
    assert renewed != first
    product.clock.forward_ms += 120_000
    assert await vote.count(vote.answer(renewed, 1)) == (0, 1)
    assert (await vote.post(vote.answer(first))).status_code == 400, "its time is over"
    assert await vote.count(vote.answer(await visitor(product, first), 1)) == (1, 0), "too late to renew"


async def test_what_the_account_requires_holds_where_the_poll_says_nothing(
    ask: Any,  # noqa: F811
    product: Product,
) -> None:
    rules, stored = VisitorRules(product.services.database), StoredRules([SECRET], None, "signed")
    vote, open_to_all = await ask(), await ask(ASKED | {"visitors": "any"})
    try:
        await rules.change("demo", lambda _: stored, Actor.operator())
        product.clock.forward_ms += 5_001
        assert (await vote.post(vote.answer("ada"))).status_code == 400
        assert await vote.count(vote.answer(signed("ada"))) == (1, 0)
        assert await open_to_all.count(open_to_all.answer("ada")) == (1, 0)
    finally:
        await rules.change("demo", lambda _: stored._replace(required="any"), Actor.operator())
        product.clock.forward_ms += 5_001
    assert await vote.count(vote.answer("ada")) == (1, 0), "another than the signed one of this name"


async def test_new_visitors_of_a_network_are_bounded_over_all_processes(product: Product) -> None:
    settings = replace(
        product.services.settings, visitors_rate_per_network=0.1, visitors_burst_per_network=3,
        visitors_rate_per_address=0.1, visitors_burst_per_address=2,
    )  # fmt: skip
    books = [VisitorAdmission(settings, product.clock, product.services.database) for _ in range(2)]
    product.clock.forward_ms += 3_600_000  # whatever was taken is there again

    async def taken(place: int, address: str) -> bool:
        try:
            await books[place].take("demo", address)
        except SlowDown:
            return False
        return True

    assert [await taken(n % 2, "192.0.2.1") for n in range(3)] == [True, True, False], "the address has two"
    assert [await taken(n % 2, f"192.0.2.{n + 2}") for n in range(2)] == [True, False], (
        "the network has three"
    )
    assert await taken(0, "192.0.3.1"), "another network"
    assert [await taken(0, f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert await taken(1, "2001:db8:0:1::1")
    assert await taken(1, ""), "nobody's address has no limit"
    assert books[0].network_of("::ffff:192.0.2.9") == "192.0.2.0/24"


async def test_refusal_at_the_bound_loses_no_vote(ask: Any, product: Product) -> None:  # noqa: F811
    """Who has a visitor votes on, however many new ones the network is refused."""
    vote, ada = await ask(ISSUED), await visitor(product)
    settings = product.services.settings
    slow = replace(settings, visitors_rate_per_network=0.01, visitors_burst_per_network=1)
    product.clock.forward_ms += 3_600_000
    tight = build_audience(slow, product.clock, product.services.database, product.services.audience.counters,
                           product.services.owners)  # fmt: skip
    at = app_of(replace(product.services, audience=tight, settings=slow))
    async with replace(product, app=at).door(None) as door:
        replies = [await door.post("/responses/visitor", json=body) for body in ({}, {}, {"visitorId": ada})]
    await tight.close()
    product.clock.forward_ms += 3_600_000
    assert [reply.status_code for reply in replies] == [200, 429, 200]
    assert int(replies[1].headers["Retry-After"]) >= 1
    assert await vote.count(vote.answer(ada)) == (1, 0)


async def test_what_looks_wrong_is_told_without_who(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask(ASKED | {"watched": True}, projectId="own")
    assert await vote.count(*(vote.answer(f"bot-{n}") for n in range(150))) == (150, 0)
    assert await vote.count(*(vote.answer(f"bot-{n}") for n in range(150))) == (0, 150)
    (poll,) = (await integrity(vote, "user")).json()["polls"]
    assert (poll["votes"], poll["isWatched"], poll["visitors"]) == (150, True, "any")
    assert sum(minute["votes"] for minute in poll["minutes"]) == 150
    assert poll["inRow"] == 149
    assert sum(poll["networks"]) + poll["otherVotes"] == 150
    findings = " ".join(poll["findings"])
    assert "consecutive names" in findings
    assert "network" in findings


async def test_names_without_order_are_no_row(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask(ISSUED)
    assert await vote.count(*[vote.answer(await visitor(product)) for _ in range(20)]) == (20, 0)
    (poll,) = (await integrity(vote)).json()["polls"]
    assert (poll["votes"], poll["inRow"], poll["findings"]) == (20, 0, [])


async def test_polls_that_nobody_watches_have_no_numbers(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask()
    assert await vote.count(vote.answer("a-1"), vote.answer("a-2")) == (2, 0)
    (poll,) = (await integrity(vote)).json()["polls"]
    assert (poll["votes"], poll["isWatched"], poll["minutes"], poll["networks"]) == (0, False, [], [])


async def test_a_report_that_is_read_while_counts_are_written_is_of_one_moment(
    ask: Any,  # noqa: F811
    product: Product,
    module_dsn: str,
) -> None:
    """One with votes by network and none by minute was an internal error: no minute was the typical one."""
    vote = await ask(ASKED | {"watched": True})
    assert await vote.count(*(vote.answer(f"bot-{n}") for n in range(150))) == (150, 0)
    await product.services.audience.patterns.write()
    writer = await asyncpg.connect(module_dsn)
    async with writer.transaction():
        await writer.execute("LOCK TABLE vote_networks")
        read = asyncio.create_task(vote.get(f"{vote.project}/{vote.program}/integrity", role="admin"))
        await until_waiting(module_dsn)
        await writer.execute("INSERT INTO vote_minutes SELECT max(uid), 1, 50, 0 FROM answer_polls")
        await writer.execute("INSERT INTO vote_networks SELECT max(uid), 1, 50 FROM answer_polls")
    await writer.close()
    (poll,) = (await read).json()["polls"]
    assert (poll["votes"], sum(minute["votes"] for minute in poll["minutes"])) == (150, 150)


async def test_rows_are_bounded_and_add_up(ask: Any, product: Product) -> None:  # noqa: F811
    vote = await ask(ASKED | {"watched": True})
    assert await vote.count(vote.answer("a")) == (1, 0)
    patterns = product.services.audience.patterns
    await patterns.write()
    (uid,) = [count.uid for count in await product.services.audience.polls.count(
        "demo", None, program_id=vote.program)]  # fmt: skip
    networks = sorted((uid, network, 20 if network == 2_500 else 1) for network in range(1, 2_501))
    await patterns.stored.add([(uid, minute, 1, 0) for minute in range(60_000_000, 60_003_000)], networks)
    await patterns.stored.add([(uid, 60_003_000, 1, 0)], [(uid, 2_500, 5)])
    minutes, kept = await patterns.stored.read([uid])
    assert (len(minutes), len(kept)) == (1_440, 1_001)
    assert {row.network for row in kept[:2]} == {0, 2_500}
    assert sum(row.votes for row in kept) == 2_499 + 25 + 1
    poll = (await integrity(vote)).json()["polls"][0]
    assert poll["networks"] == [25], "what is smaller is told together"
    assert len(poll["networks"]) <= 20
