from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from broker.auth.administration import Administration
from broker.auth.authenticator import Authenticator
from broker.clock import SystemClock
from broker.domain.users import Role
from broker.errors import BadCredentials, Conflict, InvalidRequest, NotFound, Unauthenticated
from broker.ids import IdSource
from broker.storage.database import Database
from tests.auth.services import CHEAP, open_authenticator, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CLOCK = SystemClock()


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


@pytest.fixture
async def auth(database: Database) -> AsyncIterator[Authenticator]:
    async with open_authenticator(database) as auth:
        yield auth


@pytest.fixture
async def administration(database: Database) -> AsyncIterator[Administration]:
    administration = Administration(database, CLOCK, IdSource(CLOCK), CHEAP)
    yield administration
    administration.close()


async def test_accounts_are_added_and_listed(administration: Administration) -> None:
    await administration.add_account("zebra", ("https://tv.example",))
    accounts = await administration.list_accounts()
    assert [(account.name, account.origins) for account in accounts] == [
        ("demo", None),
        ("other", None),
        ("zebra", ("https://tv.example",)),
    ]
    assert (await administration.set_origins("zebra", None)).origins is None
    assert (await administration.set_origins("zebra", ())).origins == ()
    with pytest.raises(Conflict):
        await administration.add_account("zebra")
    with pytest.raises(NotFound):
        await administration.set_origins("missing", None)


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "-a", "a-", "a.b", "x" * 64])
async def test_account_names_are_host_labels(administration: Administration, name: str) -> None:
    with pytest.raises(InvalidRequest, match="account"):
        await administration.add_account(name)


async def test_added_user_logs_in(administration: Administration, auth: Authenticator) -> None:
    user = await administration.add_user(
        "demo", "kim", "correct horse", Role.PRODUCER, name="Kim Vo", email="kim@example.com"
    )
    assert [listed.id for listed in await administration.list_users("demo")] == [user.id]
    assert await administration.list_users("other") == []
    assert await auth.log_in("demo", "kim", "correct horse", "")


@pytest.mark.parametrize(
    ("field", "username", "password", "email"),
    [
        ("username", "", "correct horse", None),
        ("username", " kim", "correct horse", None),
        ("password", "kim", "seven77", None),
        ("email", "kim", "correct horse", "nobody"),
    ],
)
async def test_bad_field_is_named(
    administration: Administration, field: str, username: str, password: str, email: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await administration.add_user("demo", username, password, Role.USER, email=email)
    assert caught.value.faults[0].field == field
    assert "horse" not in caught.value.message
    assert "seven77" not in caught.value.message


async def test_new_password_ends_tokens(administration: Administration, auth: Authenticator) -> None:
    await administration.add_user("demo", "kim", "correct horse", Role.USER)
    token = (await auth.log_in("demo", "kim", "correct horse", "")).text
    await administration.set_password("demo", "kim", "another horse")
    await auth._standings.catch_up()
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", token)
    with pytest.raises(BadCredentials):
        await auth.log_in("demo", "kim", "correct horse", "")
    assert await auth.log_in("demo", "kim", "another horse", "")


async def test_last_admin_stays(administration: Administration) -> None:
    await administration.add_user("demo", "one", "correct horse", Role.ADMIN)
    with pytest.raises(Conflict):
        await administration.delete_user("demo", "one")
    with pytest.raises(Conflict):
        await administration.set_role("demo", "one", Role.PRODUCER)
    await administration.add_user("demo", "two", "correct horse", Role.ADMIN)
    assert (await administration.set_role("demo", "one", Role.PRODUCER)).role is Role.PRODUCER
    await administration.delete_user("demo", "one")
    assert [user.username for user in await administration.list_users("demo")] == ["two"]


Call = Callable[[Administration, str, str], Awaitable[object]]
CALLS: list[Call] = [
    lambda it, account, name: it.set_password(account, name, "another horse"),
    lambda it, account, name: it.set_role(account, name, Role.USER),
    lambda it, account, name: it.delete_user(account, name),
]


@pytest.mark.parametrize("call", CALLS, ids=["set_password", "set_role", "delete_user"])
@pytest.mark.parametrize(("account", "name"), [("demo", "nobody"), ("missing", "kim"), ("other", "kim")])
async def test_unknown_user_or_account_is_not_found(
    administration: Administration, call: Call, account: str, name: str
) -> None:
    await administration.add_user("demo", "kim", "correct horse", Role.USER)
    with pytest.raises(NotFound):
        await call(administration, account, name)


async def test_users_of_an_unknown_account_are_not_found(administration: Administration) -> None:
    with pytest.raises(NotFound):
        await administration.list_users("missing")
    with pytest.raises(NotFound):
        await administration.add_user("missing", "kim", "correct horse", Role.USER)
