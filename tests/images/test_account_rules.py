"""Rules of accounts: changed by commands, followed within seconds, kept while the database is away."""

from collections.abc import AsyncIterator

import pytest

from broker.errors import InvalidRequest, NotFound, Unavailable
from broker.images.account_rules import AccountRules, RuleBook
from broker.images.administration import RuleChange, change_rules
from broker.storage.database import Database
from broker.storage.image_rules import ImageRules, StoredImageRules
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def test_an_account_without_rules_takes_any_host(database: Database) -> None:
    book = RuleBook(ImageRules(database), StoppedClock())
    assert await book.get("demo") == AccountRules()
    with pytest.raises(NotFound):
        await book.get("nobody")


async def test_a_change_is_followed_within_seconds(database: Database) -> None:
    clock = StoppedClock()
    book = RuleBook(ImageRules(database), clock)
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


async def test_rules_hold_while_the_database_is_away(database: Database) -> None:
    class AwayRules(ImageRules):
        is_away = False

        async def get(self, account: str) -> StoredImageRules:
            if self.is_away:
                raise Unavailable("the database is away")
            return await super().get(account)

    clock, stored = StoppedClock(), AwayRules(database)
    book = RuleBook(stored, clock)
    await book.get("demo")
    stored.is_away = True
    clock.ms += 60_000
    assert await book.get("demo") == AccountRules()
    with pytest.raises(Unavailable):
        await book.get("other")
