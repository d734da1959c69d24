import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.auth.authenticator import Authenticator
from broker.auth.bootstrap import FirstAccount, ensure_first_account
from broker.clock import SystemClock
from broker.domain.users import Role
from broker.errors import InvalidRequest
from broker.ids import IdSource
from broker.storage.accounts import Accounts
from broker.storage.database import Database
from broker.storage.users import Users
from tests.auth.services import open_authenticator, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CLOCK = SystemClock()


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn, size=8) as database:
        yield database


@pytest.fixture
async def auth(database: Database) -> AsyncIterator[Authenticator]:
    async with open_authenticator(database) as auth:
        yield auth


async def first(database: Database, password: str = "", account: str = "fresh") -> FirstAccount:
    return await ensure_first_account(
        database, CLOCK, IdSource(CLOCK), account=account, admin_password=password
    )


async def test_first_start_makes_the_account_and_an_admin(database: Database, auth: Authenticator) -> None:
    made = await first(database)
    assert made.created
    assert made.made_up_password is not None
    assert len(made.made_up_password) >= 32
    assert (await Accounts(database, CLOCK).get("fresh")).origins is None
    (admin,) = await Users(database).list("fresh")
    assert (admin.username, admin.role) == ("admin", Role.ADMIN)
    token = await auth.log_in("fresh", "admin", made.made_up_password, "")
    assert (await auth.authenticate("fresh", token.text)).role is Role.ADMIN


@pytest.mark.parametrize("password", ["x", "x" * 1000, "geheim"])
async def test_operator_may_choose_any_password(
    database: Database, auth: Authenticator, password: str
) -> None:
    made = await first(database, password)
    assert made.made_up_password is None
    assert await auth.log_in("fresh", "admin", password, "")


async def test_password_over_the_limit_makes_nobody(database: Database) -> None:
    with pytest.raises(InvalidRequest, match="password"):
        await first(database, "x" * 1001)
    assert await Users(database).list("fresh") == []


async def test_account_name_must_be_one(database: Database) -> None:
    with pytest.raises(InvalidRequest, match="account"):
        await first(database, account="Not_A_Name")


async def test_later_starts_change_nothing(database: Database, auth: Authenticator) -> None:
    await first(database, "first password")
    again = await first(database, "second password")
    assert again == FirstAccount("fresh", "admin", created=False)
    assert await auth.log_in("fresh", "admin", "first password", "")
    assert len(await Users(database).list("fresh")) == 1


async def test_one_of_many_starts_makes_the_admin(database: Database) -> None:
    results = await asyncio.gather(*(first(database) for _ in range(4)))
    assert sorted(result.created for result in results) == [False, False, False, True]
    assert sum(result.made_up_password is not None for result in results) == 1
    assert len(await Users(database).list("fresh")) == 1


async def test_made_up_password_is_in_no_repr(database: Database) -> None:
    made = await first(database)
    assert made.made_up_password is not None
    assert made.made_up_password not in repr(made)
