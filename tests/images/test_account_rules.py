"""Rules of accounts: changed by commands, followed within seconds, kept while the database is away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from broker.auth import account_cache
from broker.auth.account_cache import AccountCache
from broker.domain.audit import Actor
from broker.domain.quotas import QuotaName
from broker.errors import InvalidRequest, NotFound, SlowDown, Unavailable
from broker.images.account_rules import AccountRules, rule_book
from broker.images.administration import RuleChange, change_rules
from broker.storage.account_quotas import AccountQuotas
from broker.storage.database import Database
from broker.storage.image_rules import ImageRules, StoredImageRules
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def test_an_account_without_rules_takes_any_host(database: Database) -> None:
    book = rule_book(ImageRules(database), StoppedClock())
    assert await book.get("demo") == AccountRules()
    with pytest.raises(NotFound):
        await book.get("nobody")


async def test_the_quota_is_read_with_the_rules_and_stays_when_they_change(database: Database) -> None:
    await AccountQuotas(database).set("demo", {QuotaName.IMAGES: 7}, Actor.operator())
    book = rule_book(ImageRules(database), StoppedClock())
    assert await book.get("demo") == AccountRules(quota=7)
    await change_rules(database, "demo", RuleChange(["cdn.example.com"]))
    assert (await rule_book(ImageRules(database), StoppedClock()).get("demo")).quota == 7


async def test_a_change_is_followed_within_seconds(database: Database) -> None:
    clock = StoppedClock()
    book = rule_book(ImageRules(database), clock)
    await book.get("demo")
    presets = {"card": "h=300,w=400,fit=fill:center"}
    changed = await change_rules(database, "demo", RuleChange(["CDN.example.com"], presets, "on"))
    assert (await book.get("demo")).signing_keys == ()
    clock.ms += 5_000
    rules = await book.get("demo")
    assert rules.hosts.exact == {"cdn.example.com"}
    assert rules.presets == {"card": "w=400,h=300,fit=fill"}
    assert rules.signing_keys == (changed.made_key,)


async def test_what_is_not_told_stays(database: Database) -> None:
    first = await change_rules(database, "demo", RuleChange(["a.test"], {"one": "w=50"}, "on"))
    again = await change_rules(
        database, "demo", RuleChange(presets={"two": "w=100", "one": ""}, signing="on")
    )
    assert again.rules.hosts == ("a.test",)
    assert again.rules.presets == {"two": "w=100"}
    assert (again.made_key, again.rules.signing_keys) == (None, (first.made_key,))


async def test_the_key_before_is_accepted_until_the_next_but_one(database: Database) -> None:
    first = (await change_rules(database, "demo", RuleChange(signing="on"))).made_key
    second = await change_rules(database, "demo", RuleChange(signing="rotate"))
    assert second.rules.signing_keys == (second.made_key, first)
    third = await change_rules(database, "demo", RuleChange(signing="rotate"))
    assert third.rules.signing_keys == (third.made_key, second.made_key)
    assert (await change_rules(database, "demo", RuleChange(signing="off"))).rules.signing_keys == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (RuleChange(hosts=["https://a.test"]), "image_host"),
        (RuleChange(hosts=[f"{at}.test" for at in range(101)]), "at most 100"),
        (RuleChange(presets={"a": "w=51"}), "a: w: 50"),
        (RuleChange(presets={"A": "w=50"}), "preset: up to 64"),
        (RuleChange(presets={"a": "preset=b"}), "no preset"),
        (RuleChange(presets={f"a{at}": "w=50" for at in range(101)}), "at most 100"),
    ],
)
async def test_what_cannot_be_is_refused(database: Database, change: RuleChange, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        await change_rules(database, "demo", change)
    with pytest.raises(NotFound):
        await change_rules(database, "nobody", RuleChange(signing="on"))


class CountedRules(ImageRules):
    """What is stored, and how often it was asked for."""

    queries = 0

    async def get(self, account: str) -> StoredImageRules:
        self.queries += 1
        return await super().get(account)


async def ask_all(book: AccountCache[AccountRules], accounts: list[str], address: str) -> Counter[type]:
    asked = [book.get(account, address) for account in accounts]
    return Counter(map(type, await asyncio.gather(*asked, return_exceptions=True)))


async def test_invented_accounts_cost_an_address_so_many_queries(database: Database) -> None:
    clock, stored = StoppedClock(), CountedRules(database)
    book = rule_book(stored, clock)
    invented = [f"nobody-{at}" for at in range(300)]
    for account in invented[:100]:
        with pytest.raises(NotFound):
            await book.get(account, "192.0.2.1")
    for account in invented[100:]:
        with pytest.raises(SlowDown):
            await book.get(account, "192.0.2.1")
    assert stored.queries == 100
    with pytest.raises(NotFound):
        await book.get(invented[99], "192.0.2.1")
    assert stored.queries == 100, "a name without an account is remembered"
    assert await book.get("demo", "192.0.2.2") == AccountRules()
    assert await book.get("demo", "192.0.2.1") == AccountRules(), "what is known costs nothing"
    clock.ms += 1_000
    with pytest.raises(NotFound):
        await book.get("another", "192.0.2.1")


async def test_equal_accounts_at_a_time_cost_one_query(database: Database) -> None:
    stored = CountedRules(database)
    book = rule_book(stored, StoppedClock())
    assert await ask_all(book, ["demo"] * 50, "192.0.2.1") == {AccountRules: 50}
    assert await ask_all(book, ["nobody"] * 50, "192.0.2.1") == {NotFound: 50}
    assert stored.queries == 2


async def test_who_asks_for_invented_accounts_holds_up_nobody(database: Database) -> None:
    """Many wait for their turn, more are refused; one of another address comes after one of each."""
    book = rule_book(ImageRules(database), StoppedClock())
    greedy = asyncio.create_task(ask_all(book, [f"nobody-{at}" for at in range(500)], "192.0.2.1"))
    await asyncio.sleep(0)
    assert await book.get("demo", "192.0.2.2") == AccountRules()
    assert not greedy.done()
    told = await greedy
    assert set(told) == {NotFound, SlowDown, Unavailable}
    assert told[NotFound] <= 100


async def test_invented_accounts_take_no_place_of_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_cache, "MAX_NAMES", 5)
    clock, stored = StoppedClock(), CountedRules(database)
    book = rule_book(stored, clock)
    await book.get("demo", "192.0.2.1")
    await ask_all(book, [f"nobody-{at}" for at in range(20)], "192.0.2.1")
    before = stored.queries
    await book.get("demo", "192.0.2.1")
    assert stored.queries == before


async def test_rules_hold_while_the_database_is_away(database: Database) -> None:
    class AwayRules(ImageRules):
        is_away = False

        async def get(self, account: str) -> StoredImageRules:
            if self.is_away:
                raise Unavailable("the database is away")
            return await super().get(account)

    clock, stored = StoppedClock(), AwayRules(database)
    book = rule_book(stored, clock)
    await book.get("demo")
    stored.is_away = True
    clock.ms += 60_000
    assert await book.get("demo") == AccountRules()
    with pytest.raises(Unavailable):
        await book.get("other")


async def test_changes_at_the_same_time_all_count(database: Database) -> None:
    presets = [f"preset-{number}" for number in range(8)]
    await asyncio.gather(
        *(change_rules(database, "demo", RuleChange(presets={name: "w=50"})) for name in presets)
    )
    assert {*presets} <= (await ImageRules(database).get("demo")).presets.keys()
