"""Votes of visitors whom the account's own server has signed."""

import logging
from typing import Any

import pytest

from broker.domain.audit import Actor
from broker.storage.visitor_rules import StoredRules, VisitorRules
from tests.auth.visitor_tokens import SECRET, signed
from tests.product import Product
from tests.rest.test_responses import ASKED, ask  # noqa: F401  # a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SIGNED = ASKED | {"visitors": "signed"}


@pytest.fixture
async def keyed(product: Product) -> Product:
    rules = StoredRules([SECRET], None, "any")
    await VisitorRules(product.services.database).change("demo", lambda _: rules, Actor.operator())
    product.clock.forward_ms += 5_001  # what is remembered of keys is over
    return product


async def test_only_signed_visitors_count(ask: Any, keyed: Product) -> None:  # noqa: F811
    vote = await ask(SIGNED)
    assert await vote.count(vote.answer(signed("ada"), 0), vote.answer(signed("ben"), 1)) == (2, 0)
    for wrong in ("ada", "x" * 128, signed("eve", "x" * 32), signed(aud="votes:other"), signed(exp=5)):
        refused = await vote.post(vote.answer(signed("cleo")), vote.answer(wrong))
        assert (refused.status_code, [fault["field"] for fault in refused.json()["errors"]]) == (
            400,
            ["responses[1].visitorId"],
        )
        assert wrong not in refused.text
    assert (await vote.results(programId=vote.program))["results"] == {"0": 1, "1": 1, "2": 0}


async def test_tokens_of_one_visitor_are_one_visitor(ask: Any, keyed: Product) -> None:  # noqa: F811
    vote = await ask(SIGNED)
    again = signed("ada", exp=4_000_000_001)
    assert await vote.count(vote.answer(signed("ada"), 0), vote.answer(again, 1)) == (1, 1)
    assert await vote.count(vote.answer(signed("ada"), 0)) == (0, 1), (
        "a token that is sent again adds nothing"
    )
    assert await vote.count(impressions=[vote.impression(again, "s")]) == (1, 0)
    refused = await vote.post(impressions=[vote.impression("ada", "s")])
    assert refused.status_code == 400


async def test_a_token_is_of_its_program_and_account(ask: Any, keyed: Product) -> None:  # noqa: F811
    vote = await ask(SIGNED)
    assert (await vote.post(vote.answer(signed(programId="elsewhere")))).status_code == 400
    assert await vote.count(vote.answer(signed(programId=vote.program))) == (1, 0)


async def test_without_a_key_nobody_is_signed(ask: Any, keyed: Product) -> None:  # noqa: F811
    vote = await ask(SIGNED)
    rules = StoredRules([], None, "any")
    await VisitorRules(keyed.services.database).change("demo", lambda _: rules, Actor.operator())
    keyed.clock.forward_ms += 5_001
    assert (await vote.post(vote.answer(signed()))).status_code == 400


async def test_other_polls_are_as_they_were(ask: Any, keyed: Product) -> None:  # noqa: F811
    vote = await ask()
    assert await vote.count(vote.answer("ada")) == (1, 0)
    for name in ("x" * 129, signed()):
        refused = await vote.post(vote.answer(name))
        assert refused.status_code == 400
        assert refused.json()["errors"][0]["field"] == "responses[0].visitorId"


async def test_logs_have_neither_key_nor_token(
    ask: Any,  # noqa: F811
    keyed: Product,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vote = await ask(SIGNED)
    with caplog.at_level(logging.DEBUG):
        assert (await vote.post(vote.answer(signed("ada"), 9))).status_code == 400
        assert await vote.count(vote.answer(signed("ada"))) == (1, 0)
    written = "\n".join(record.getMessage() + repr(record.__dict__) for record in caplog.records)
    assert SECRET not in written
    assert signed("ada") not in written
