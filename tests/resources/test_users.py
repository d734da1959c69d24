import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from broker.auth.authenticator import Authenticator
from broker.domain.users import Principal, Role, User
from broker.errors import BrokerError, Conflict, InsufficientScope, InvalidRequest, NotFound, Unauthenticated
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.operations.registry import Registry
from broker.operations.services import Services
from broker.resources.users import OPERATIONS, NewUserParams, ProfileParams
from tests.auth.services import PASSWORD, make_user, open_services

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REGISTRY = Registry(OPERATIONS)
NEW = {"username": "new", "password": "correct horse", "role": "producer"}


@pytest.fixture
async def services(migrated_dsn: str) -> AsyncIterator[Services]:
    """With one user of each role, named for it, and the admin of another account."""
    async with open_services(migrated_dsn) as services:
        for role in Role:
            await make_user(services.database, services.auth, role.value, role.value)
        await make_user(services.database, services.auth, "foreign", "admin", account="other")
        yield services


async def principal(services: Services, username: str | None, account: str = "demo") -> Principal:
    """Who a log-in by this name acts as."""
    if username is None:
        return Principal(account)
    token = await services.auth.log_in(account, username, PASSWORD, "")
    return await services.auth.authenticate(account, token.text)


async def call(
    services: Services, name: str, raw: dict[str, Any], by: str | None = "admin", account: str = "demo"
) -> Any:
    return await call_as(services, await principal(services, by, account), name, raw)


async def call_as(services: Services, caller: Principal, name: str, raw: dict[str, Any]) -> Any:
    operation = REGISTRY.find(name)
    assert operation is not None
    return await invoke(operation, Context(services, caller, "request-1"), raw)


async def waiting(services: Services, count: int) -> None:
    """Until so many transactions wait for a lock."""
    query = (
        "SELECT pg_sleep(0.01), count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(10), services.database.connection() as connection:
        while (await connection.fetchrow(query))[1] < count:
            pass


async def fault(
    services: Services, name: str, raw: dict[str, Any], by: str | None = "admin", account: str = "demo"
) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await call(services, name, raw, by, account)
    return caught.value


async def id_of(services: Services, username: str, account: str = "demo") -> str:
    return next(u.id for u in await services.users.list(account) if u.username == username)


async def can_log_in(services: Services, username: str, password: str = PASSWORD) -> bool:
    try:
        await services.auth.log_in("demo", username, password, "")
    except Unauthenticated:
        return False
    return True


# -- who may


async def test_a_user_who_was_read_can_be_sent_back(services: Services) -> None:
    read = (await call(services, "getUser", {"userId": await id_of(services, "user")})).model_dump(
        mode="json"
    )
    sent = read | {"name": "Kim Vo", "createdTime": "2020-01-01T00:00:00.000Z", "updatedTime": None}
    changed = (await call(services, "updateUser", sent | {"userId": read["id"]})).model_dump(mode="json")
    assert changed == read | {"name": "Kim Vo", "updatedTime": changed["updatedTime"]}
    own = (await call(services, "getCurrentUser", {}, "user")).model_dump(mode="json")
    assert (await call(services, "updateCurrentUser", own, "user")).name == "Kim Vo"


async def test_the_id_of_a_user_cannot_change(services: Services) -> None:
    user, other = await id_of(services, "user"), await id_of(services, "client")
    for name, raw, by in (("updateUser", {"userId": user}, "admin"), ("updateCurrentUser", {}, "user")):
        refused = await fault(services, name, raw | {"id": other}, by)
        assert isinstance(refused, InvalidRequest)
        assert [each.field for each in refused.faults] == ["id"]


async def test_a_user_belongs_to_no_project_whose_name_means_none(services: Services) -> None:
    user = await id_of(services, "user")
    for word in ("undefined", "undefiend"):
        for name, raw in (("createUser", NEW), ("updateUser", {"userId": user})):
            refused = await fault(services, name, raw | {"projectIds": ["own", word]})
            assert isinstance(refused, InvalidRequest)
            assert [each.field for each in refused.faults] == ["projectIds"]


async def test_a_user_who_is_stored_with_such_a_project_goes_on(services: Services) -> None:
    user = await id_of(services, "user")
    async with services.database.connection() as connection:
        await connection.execute("UPDATE users SET project_ids = '{undefined}' WHERE id = $1", user)
    changed = await call(services, "updateUser", {"userId": user, "projectIds": ["undefined", "own"]})
    assert changed.project_ids == ["undefined", "own"]


@pytest.mark.parametrize("by", [None, "client", "user", "producer", "admin", "foreign"])
@pytest.mark.parametrize(
    ("name", "raw", "allowed"),
    [
        ("getCurrentUser", {}, {"client", "user", "producer", "admin", "foreign"}),
        ("updateCurrentUser", {"name": "N"}, {"user", "producer", "admin", "foreign"}),
        ("listRoles", {}, {"client", "user", "producer", "admin", "foreign"}),
        ("listUsers", {}, {"admin", "foreign"}),
        ("createUser", NEW, {"admin", "foreign"}),
        ("getUser", {"userId": "producer"}, {"producer", "admin"}),
        ("updateUser", {"userId": "producer", "name": "N"}, {"producer", "admin"}),
        ("deleteUser", {"userId": "producer"}, {"admin"}),
        ("getUser", {"userId": "client"}, {"client", "admin"}),
        ("updateUser", {"userId": "client", "name": "N"}, {"admin"}),
    ],
)
async def test_every_role_may_what_the_rules_say(
    services: Services, by: str | None, name: str, raw: dict[str, Any], allowed: set[str]
) -> None:
    account = "other" if by == "foreign" else "demo"
    if "userId" in raw:
        raw = {**raw, "userId": await id_of(services, raw["userId"])}
    if by in allowed:
        await call(services, name, raw, by, account)
        return
    error = await fault(services, name, raw, by, account)
    # An admin of another account may ask; there the user does not exist.
    expected = 401 if by is None else 404 if by == "foreign" else 403
    assert error.status == expected


@pytest.mark.parametrize("name", ["getUser", "updateUser", "deleteUser"])
async def test_whether_a_user_exists_is_told_to_admins_only(services: Services, name: str) -> None:
    raw = {"userId": "0190-missing"}
    assert isinstance(await fault(services, name, raw, "user"), InsufficientScope)
    assert isinstance(await fault(services, name, raw, "admin"), NotFound)


async def test_listed_users_are_those_of_the_account_by_name(services: Services) -> None:
    listed = await call(services, "listUsers", {})
    assert [user.username for user in listed] == ["admin", "client", "producer", "user"]
    assert [user.username for user in await call(services, "listUsers", {}, "foreign", "other")] == [
        "foreign"
    ]


async def test_roles_are_named_in_the_document_s_order(services: Services) -> None:
    assert await call(services, "listRoles", {}, "client") == ["admin", "producer", "client", "user"]


# -- making


async def test_created_user_has_every_field_and_no_password(services: Services) -> None:
    raw = {**NEW, "name": "Kim Vo", "email": "kim@example.com", "projectIds": ["b", "a", "b"]}
    user = await call(services, "createUser", raw)
    body = user.model_dump(mode="json")
    assert {name: body[name] for name in ("username", "role", "name", "email", "projectIds")} == {
        "username": "new",
        "role": "producer",
        "name": "Kim Vo",
        "email": "kim@example.com",
        "projectIds": ["b", "a"],
    }
    assert sorted(body) == sorted(
        ["id", "username", "role", "name", "email", "projectIds", "createdTime", "updatedTime"]
    )
    assert body["createdTime"].endswith("Z")
    assert await call(services, "getUser", {"userId": body["id"]}) == user
    assert await can_log_in(services, "new", "correct horse")


async def test_absent_and_null_mean_the_same_on_create(services: Services) -> None:
    user = await call(services, "createUser", {**NEW, "name": None, "email": None, "projectIds": None})
    assert (user.name, user.email, user.project_ids) == (None, None, [])


@pytest.mark.parametrize("name", ["username", "password", "role"])
async def test_required_field_is_named(services: Services, name: str) -> None:
    missing = {key: value for key, value in NEW.items() if key != name}
    for raw in (missing, {**NEW, name: None}):
        error = await fault(services, "createUser", raw)
        assert (error.status, [f.field for f in error.faults]) == (400, [name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("username", ""),
        ("username", "x" * 256),
        ("username", " kim"),
        ("username", "kim\n"),
        ("username", "k\x00m"),
        ("username", 7),
        ("password", "seven77"),
        ("password", "x" * 1001),
        ("password", 12345678),
        ("role", "owner"),
        ("role", "Admin"),
        ("name", ""),
        ("name", "x" * 1001),
        ("name", "k\x00m"),
        ("email", "kim"),
        ("email", "kim@"),
        ("email", "@example.com"),
        ("email", "kim@example..com"),
        ("email", "kim @example.com"),
        ("email", "kim@example.com\n"),
        ("email", f"{'x' * 243}@example.com"),
        ("projectIds", "a"),
        ("projectIds", ["a"] * 1001),
    ],
)
async def test_bad_field_is_named(services: Services, name: str, value: object) -> None:
    error = await fault(services, "createUser", {**NEW, name: value})
    assert (error.status, error.name) == (400, "invalid_request")
    assert [f.field for f in error.faults] == [name]


async def test_bad_project_is_named_by_its_place(services: Services) -> None:
    error = await fault(services, "createUser", {**NEW, "projectIds": ["a", "b c"]})
    assert [f.field for f in error.faults] == ["projectIds[1]"]


async def test_unknown_field_is_named(services: Services) -> None:
    error = await fault(services, "createUser", {**NEW, "passwordHash": "x"})
    assert [f.field for f in error.faults] == ["passwordHash"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("username", "x" * 255),
        ("username", "kim@example.com"),
        ("username", "Kim Vø"),
        ("password", "8 signs!"),
        ("password", "x" * 1000),
        ("name", "x" * 1000),
        ("email", f"{'x' * 242}@example.com"),
        ("projectIds", ["a"] * 1000),
    ],
)
async def test_field_at_its_edge_is_accepted(services: Services, name: str, value: object) -> None:
    await call(services, "createUser", {**NEW, name: value})


async def test_taken_user_name_is_a_conflict_within_the_account_only(services: Services) -> None:
    await call(services, "createUser", NEW)
    assert isinstance(await fault(services, "createUser", NEW), Conflict)
    await call(services, "createUser", NEW, "foreign", "other")


async def test_one_spelling_of_composed_letters_counts(services: Services) -> None:
    await call(services, "createUser", {**NEW, "username": "Ren\u00e9"})
    error = await fault(services, "createUser", {**NEW, "username": "Rene\u0301"})
    assert isinstance(error, Conflict)
    assert await can_log_in(services, "Rene\u0301", "correct horse")


# -- changing


async def test_absent_fields_are_kept_and_null_clears(services: Services) -> None:
    raw = {**NEW, "name": "Kim", "email": "kim@example.com", "projectIds": ["a"]}
    user = await call(services, "createUser", raw)
    kept = await call(services, "updateUser", {"userId": user.id, "name": "Kim Vo"})
    assert (kept.name, kept.email, kept.project_ids, kept.role) == (
        "Kim Vo",
        "kim@example.com",
        ["a"],
        Role.PRODUCER,
    )
    assert kept.updated_time >= user.updated_time
    assert kept.created_time == user.created_time
    cleared = await call(
        services, "updateUser", {"userId": user.id, "name": None, "email": None, "projectIds": None}
    )
    assert (cleared.name, cleared.email, cleared.project_ids) == (None, None, [])
    assert await can_log_in(services, "new", "correct horse")


@pytest.mark.parametrize("name", ["username", "password", "role"])
async def test_what_every_user_has_cannot_be_cleared(services: Services, name: str) -> None:
    raw = {"userId": await id_of(services, "user"), name: None}
    error = await fault(services, "updateUser", raw)
    assert (error.status, [f.field for f in error.faults]) == (400, [name])


async def test_users_change_their_own_profile_by_both_ways(services: Services) -> None:
    await call(services, "updateCurrentUser", {"name": "Me", "email": "me@example.com"}, "user")
    raw = {"userId": await id_of(services, "user"), "password": "another horse"}
    user = await call(services, "updateUser", raw, "user")
    assert (user.name, user.email) == ("Me", "me@example.com")
    assert await can_log_in(services, "user", "another horse")
    assert not await can_log_in(services, "user")


@pytest.mark.parametrize(
    "raw", [{"role": "admin"}, {"role": "client"}, {"username": "x"}, {"projectIds": ["a"]}]
)
async def test_the_rest_of_a_profile_is_an_admins(services: Services, raw: dict[str, Any]) -> None:
    assert isinstance(await fault(services, "updateCurrentUser", raw, "producer"), InsufficientScope)


async def test_fields_sent_back_unchanged_are_no_change(services: Services) -> None:
    raw = {"username": "producer", "role": "producer", "projectIds": [], "name": "P"}
    assert (await call(services, "updateCurrentUser", raw, "producer")).name == "P"


async def test_admin_changes_names_projects_and_roles_of_others(services: Services) -> None:
    raw = {"userId": await id_of(services, "user"), "username": "u2", "projectIds": ["a"], "role": "admin"}
    user = await call(services, "updateUser", raw)
    assert (user.username, user.project_ids, user.role) == ("u2", ["a"], Role.ADMIN)
    assert await can_log_in(services, "u2")


async def test_taken_name_is_a_conflict_on_update(services: Services) -> None:
    raw = {"userId": await id_of(services, "user"), "username": "producer"}
    assert isinstance(await fault(services, "updateUser", raw), Conflict)


async def test_own_role_is_nobodys_to_change(services: Services) -> None:
    await call(services, "createUser", {**NEW, "role": "admin"})
    error = await fault(services, "updateCurrentUser", {"role": "producer"})
    assert isinstance(error, InsufficientScope)


# -- removing


async def test_deleted_user_is_gone(services: Services) -> None:
    raw = {"userId": await id_of(services, "user")}
    assert await call(services, "deleteUser", raw) is None
    assert isinstance(await fault(services, "getUser", raw), NotFound)
    assert isinstance(await fault(services, "deleteUser", raw), NotFound)
    assert not await can_log_in(services, "user")


async def test_last_admin_cannot_go(services: Services) -> None:
    raw = {"userId": await id_of(services, "admin")}
    assert isinstance(await fault(services, "deleteUser", raw), Conflict)
    await make_user(services.database, services.auth, "second", "admin")
    await call(services, "deleteUser", raw)
    assert not await can_log_in(services, "admin")


async def test_two_admins_who_demote_each_other_leave_one(services: Services) -> None:
    await make_user(services.database, services.auth, "second", "admin")
    first, second = await principal(services, "admin"), await principal(services, "second")
    results = await asyncio.gather(
        call_as(services, first, "updateUser", {"userId": second.subject, "role": "user"}),
        call_as(services, second, "updateUser", {"userId": first.subject, "role": "user"}),
        return_exceptions=True,
    )
    assert sum(isinstance(result, User) for result in results) == 1
    assert sum(isinstance(result, Unauthenticated) for result in results) == 1


# -- tokens after a change


@pytest.mark.parametrize(
    ("operation", "raw", "ends"),
    [
        ("updateUser", {"password": "another horse"}, True),
        ("updateUser", {"role": "user"}, True),
        ("updateUser", {"role": "client"}, True),
        ("deleteUser", {}, True),
        ("updateUser", {"role": "admin"}, False),
        ("updateUser", {"role": "producer"}, False),
        ("updateUser", {"name": "N", "projectIds": ["a"]}, False),
    ],
)
async def test_which_changes_end_earlier_tokens(
    services: Services, operation: str, raw: dict[str, Any], ends: bool
) -> None:
    before = await principal(services, "producer")
    revoked = asyncio.Event()
    services.auth.on_revocation(lambda *_: revoked.set())
    await call(services, operation, {**raw, "userId": before.subject})
    if ends:
        await asyncio.wait_for(revoked.wait(), 5)
        assert services.auth.is_revoked(before)
        return
    await cast("Authenticator", services.auth)._standings.catch_up()  # rather than wait for nothing
    assert not services.auth.is_revoked(before)


async def test_token_issued_right_after_the_password_change_is_good(services: Services) -> None:
    await call(services, "updateCurrentUser", {"password": PASSWORD}, "producer")
    assert (await principal(services, "producer")).role is Role.PRODUCER


def test_passwords_are_in_no_repr() -> None:
    for params in (NewUserParams.model_validate(NEW), ProfileParams.model_validate({"password": PASSWORD})):
        assert "horse" not in repr(params)
        assert "horse" not in str(params)


async def test_an_admin_who_is_being_demoted_changes_nobody(services: Services) -> None:
    """Two requests in flight: the demotion of an admin, and behind it one by that admin."""
    await make_user(services.database, services.auth, "second", "admin")
    first, second = await principal(services, "admin"), await principal(services, "second")
    async with services.database.transaction() as connection:
        await connection.execute("SELECT FROM accounts WHERE name = 'demo' FOR UPDATE")
        demotion = asyncio.ensure_future(
            call_as(services, first, "updateUser", {"userId": second.subject, "role": "user"})
        )
        await waiting(services, 1)
        revenge = asyncio.ensure_future(
            call_as(services, second, "updateUser", {"userId": first.subject, "role": "user"})
        )
        await waiting(services, 2)
    demoted, refused = await asyncio.gather(demotion, revenge, return_exceptions=True)
    assert demoted.role is Role.USER
    assert isinstance(refused, Unauthenticated)
    assert (await principal(services, "admin")).role is Role.ADMIN


async def test_changes_of_two_fields_of_a_user_are_both_kept(services: Services) -> None:
    admin, user = await principal(services, "admin"), await principal(services, "user")
    changes = [{"name": "Kim"}, {"email": "kim@example.com"}, {"projectIds": ["a"]}]
    async with services.database.transaction() as connection:
        await connection.execute("SELECT FROM accounts WHERE name = 'demo' FOR UPDATE")
        calls = [
            asyncio.ensure_future(call_as(services, admin, "updateUser", {"userId": user.subject} | change))
            for change in changes[:2]
        ]
        await waiting(services, 2)
    await asyncio.gather(*calls)
    after = await call_as(services, admin, "updateUser", {"userId": user.subject} | changes[2])
    assert (after.name, after.email, after.project_ids) == ("Kim", "kim@example.com", ["a"])


class Crossing:
    """A change by a user and one by an admin that wait for the account together, one in front."""

    def __init__(self, services: Services, admin: Principal, user: Principal) -> None:
        self.services, self.admin, self.user = services, admin, user

    async def run(self, *requests: tuple[Principal, str, dict[str, Any]]) -> list[Any]:
        """What each is answered; they take effect in this order."""
        calls: list[asyncio.Future[Any]] = []
        async with self.services.database.transaction() as connection:
            await connection.execute("SELECT FROM accounts WHERE name = 'demo' FOR UPDATE")
            for caller, name, raw in requests:
                calls.append(asyncio.ensure_future(call_as(self.services, caller, name, raw)))
                await waiting(self.services, len(calls))
        return await asyncio.gather(*calls, return_exceptions=True)

    def own(self, **changes: Any) -> tuple[Principal, str, dict[str, Any]]:
        return self.user, "updateCurrentUser", changes

    def admins(self, name: str = "updateUser", **changes: Any) -> tuple[Principal, str, dict[str, Any]]:
        return self.admin, name, {"userId": self.user.subject} | changes


@pytest.fixture
async def crossing(services: Services) -> Crossing:
    return Crossing(services, await principal(services, "admin"), await principal(services, "user"))


@pytest.mark.parametrize("is_own_first", [True, False])
async def test_a_profile_and_what_an_admin_changes_of_it_are_both_kept(
    crossing: Crossing, is_own_first: bool
) -> None:
    both = [
        crossing.own(name="Kim", email="kim@example.com"),
        crossing.admins(projectIds=["a"], role="producer", username="kim"),
    ]
    answers = await crossing.run(*(both if is_own_first else reversed(both)))
    after = await crossing.services.users.get("demo", str(crossing.user.subject))
    assert answers[1] == after
    assert (after.name, after.email) == ("Kim", "kim@example.com")
    assert (after.project_ids, after.role, after.username) == (["a"], Role.PRODUCER, "kim")


async def test_the_password_that_comes_last_counts_and_every_field_is_kept(crossing: Crossing) -> None:
    services = crossing.services
    own, admins = await crossing.run(
        crossing.own(password="my own horse", name="Kim"),
        crossing.admins(password="an admin's horse", projectIds=["a"]),
    )
    assert (own.name, admins.name, admins.project_ids) == ("Kim", "Kim", ["a"])
    assert await can_log_in(services, "user", "an admin's horse")
    assert not await can_log_in(services, "user", "my own horse")
    assert not await can_log_in(services, "user")


async def test_who_has_been_given_another_password_changes_nothing_with_the_old_one(
    crossing: Crossing,
) -> None:
    services = crossing.services
    admins, own = await crossing.run(
        crossing.admins(password="an admin's horse"), crossing.own(password="my own horse", name="Kim")
    )
    assert isinstance(own, Unauthenticated)
    assert admins == await services.users.get("demo", str(crossing.user.subject))
    assert await can_log_in(services, "user", "an admin's horse")
    assert not await can_log_in(services, "user", "my own horse")


@pytest.mark.parametrize("is_own_first", [True, False])
async def test_who_is_deleted_stays_deleted(crossing: Crossing, is_own_first: bool) -> None:
    both = [crossing.own(name="Kim", password="my own horse"), crossing.admins("deleteUser")]
    first, second = await crossing.run(*(both if is_own_first else reversed(both)))
    deleted, own = (second, first) if is_own_first else (first, second)
    assert deleted is None
    assert isinstance(own, User if is_own_first else Unauthenticated)
    with pytest.raises(NotFound):
        await crossing.services.users.get("demo", str(crossing.user.subject))
    assert not await can_log_in(crossing.services, "user", "my own horse")
