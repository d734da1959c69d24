"""API tokens: who makes them, what they are exchanged for, and what ends them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from broker.clock import to_datetime
from broker.domain.api_tokens import MAX_API_TOKENS, ApiToken, NewApiToken, hash_secret
from broker.domain.users import Principal, Role
from broker.domain.values import format_time
from broker.errors import (
    BadCredentials,
    BrokerError,
    Conflict,
    InsufficientScope,
    InvalidRequest,
    NotFound,
    SlowDown,
    Unauthenticated,
)
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.operations.registry import Registry
from broker.operations.results import Json
from broker.operations.services import Services
from broker.resources import api_tokens, tokens, users
from broker.storage.idempotency import Idempotency
from tests.auth.services import MovedClock, make_user, open_services

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REGISTRY = Registry((*api_tokens.OPERATIONS, *tokens.OPERATIONS, *users.OPERATIONS))
ADDRESS = "192.0.2.1"


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def services(migrated_dsn: str, clock: MovedClock) -> AsyncIterator[Services]:
    async with open_services(migrated_dsn, clock) as services:
        object.__setattr__(services, "idempotency", Idempotency(services.database))
        for role in Role:
            await make_user(services.database, services.auth, role.value, role.value)
        await make_user(services.database, services.auth, "producer", account="other")
        yield services


async def principal(services: Services, username: str = "producer", account: str = "demo") -> Principal:
    found = await services.users.find_credentials(account, username)
    assert found is not None
    token = await services.auth.issue(account, found.user, found.valid_from_ms)
    return await services.auth.authenticate(account, token.text)


async def call(
    services: Services, caller: Principal, name: str, /, key: str | None = None, **raw: Any
) -> Any:
    operation = REGISTRY.find(name)
    assert operation is not None
    context = Context(services, caller, "request-1", address=ADDRESS, idempotency_key=key)
    return await invoke(operation, context, raw)


async def make(services: Services, caller: Principal | None = None, **raw: Any) -> NewApiToken:
    made = await call(
        services, caller or await principal(services), "createApiToken", **{"name": "mixer"} | raw
    )
    assert isinstance(made, NewApiToken)
    return made


async def exchange(services: Services, token: str, account: str = "demo", **more: Any) -> Any:
    raw = {"grant_type": "api_token", "client_id": "Test", "token": token} | more
    return (await call(services, Principal(account), "login", **raw)).value


async def bearer(services: Services, token: str) -> Principal:
    """Who the access token of an API token acts as."""
    answer = await exchange(services, token)
    return await services.auth.authenticate("demo", answer.access_token)


async def fault(services: Services, token: str, account: str = "demo", **more: Any) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await exchange(services, token, account, **more)
    return caught.value


@pytest.mark.parametrize("role", ["admin", "producer", "user"])
async def test_token_acts_as_its_user(services: Services, role: str) -> None:
    made = await make(services, await principal(services, role))
    who = await bearer(services, made.token)
    assert (who.username, who.role, who.api_token_id) == (role, role, made.id)


@pytest.mark.parametrize("name", ["createApiToken", "listApiTokens", "deleteApiToken"])
async def test_client_users_and_strangers_have_none(services: Services, name: str) -> None:
    raw = {"createApiToken": {"name": "n"}, "deleteApiToken": {"tokenId": "t"}}.get(name, {})
    with pytest.raises(InsufficientScope):
        await call(services, await principal(services, "client"), name, **raw)
    with pytest.raises(Unauthenticated):
        await call(services, Principal("demo"), name, **raw)


async def test_secret_is_shown_once_and_stored_as_a_hash(services: Services) -> None:
    made = await make(services)
    assert len(made.token) == len("brk_") + 43  # 256 bits in base64 without padding
    assert made.token not in repr(made)
    (listed,) = await call(services, await principal(services), "listApiTokens")
    assert type(listed) is ApiToken
    assert listed.model_dump() == made.model_dump(exclude={"token"})
    async with services.database.connection() as connection:
        row = await connection.fetchrow("SELECT * FROM api_tokens")
    assert row["secret_hash"] == hash_secret(made.token)
    assert made.token not in repr(tuple(row))


async def test_everybody_sees_and_revokes_only_its_own(services: Services) -> None:
    made = await make(services)
    for username, account in (("admin", "demo"), ("user", "demo"), ("producer", "other")):
        stranger = await principal(services, username, account)
        assert await call(services, stranger, "listApiTokens") == []
        with pytest.raises(NotFound):
            await call(services, stranger, "deleteApiToken", tokenId=made.id)
    assert (await bearer(services, made.token)).username == "producer"


async def test_token_of_another_account_is_unknown(services: Services) -> None:
    made = await make(services)
    assert isinstance(await fault(services, made.token, "other"), BadCredentials)


async def test_revoking_ends_it_and_its_access_tokens_but_no_others(services: Services) -> None:
    one, two = await make(services), await make(services, name="other")
    first, second, logged_in = (
        await bearer(services, one.token),
        await bearer(services, two.token),
        await principal(services),
    )
    text = (await exchange(services, one.token)).access_token
    told: list[tuple[str, str]] = []
    changed = asyncio.Event()
    services.auth.on_change(lambda *subject: (told.append(subject), changed.set()))
    await call(services, logged_in, "deleteApiToken", tokenId=one.id)
    assert isinstance(await fault(services, one.token), BadCredentials)
    async with asyncio.timeout(5):
        await changed.wait()
    assert told == [("demo", logged_in.subject)]
    with pytest.raises(Unauthenticated):
        await services.auth.authenticate("demo", text)
    assert services.auth.is_revoked(first)
    assert not services.auth.is_revoked(second)
    assert not services.auth.is_revoked(logged_in)
    assert (await bearer(services, two.token)).username == "producer"


async def test_revoking_twice_is_not_found(services: Services) -> None:
    made = await make(services)
    await call(services, await principal(services), "deleteApiToken", tokenId=made.id)
    with pytest.raises(NotFound):
        await call(services, await principal(services), "deleteApiToken", tokenId=made.id)


async def test_access_token_ends_with_the_api_token(services: Services, clock: MovedClock) -> None:
    expires = to_datetime(clock.now_ms()) + timedelta(seconds=100)
    made = await make(services, expires=format_time(expires))
    answer = await exchange(services, made.token)
    assert 98 <= answer.expires_in <= 100
    clock.forward_ms = 90_000
    await exchange(services, made.token)
    clock.forward_ms = 101_000
    assert isinstance(await fault(services, made.token), BadCredentials)
    with pytest.raises(Unauthenticated):
        await services.auth.authenticate("demo", answer.access_token)


async def test_without_an_end_an_access_token_lives_as_always(services: Services) -> None:
    assert (await exchange(services, (await make(services)).token)).expires_in == 3600


@pytest.mark.parametrize(("ahead_ms", "is_taken"), [(60_000, True), (0, False), (-1, False)])
async def test_end_lies_in_the_future(
    services: Services, clock: MovedClock, ahead_ms: int, is_taken: bool
) -> None:
    expires = format_time(to_datetime(clock.now_ms() + ahead_ms))
    if is_taken:
        await make(services, expires=expires)
        return
    with pytest.raises(InvalidRequest) as caught:
        await make(services, expires=expires)
    assert caught.value.faults[0].field == "expires"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 1001}, "name"),
        ({"name": "n", "expires": 5}, "expires"),
        ({"name": "n", "token": "mine"}, "token"),
    ],
)
async def test_bad_input_is_named(services: Services, raw: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await call(services, await principal(services), "createApiToken", **raw)
    assert [fault.field for fault in caught.value.faults] == [field]


async def test_new_password_revokes_them(services: Services) -> None:
    made = await make(services)
    await call(services, await principal(services), "updateCurrentUser", password="another horse")
    assert isinstance(await fault(services, made.token), BadCredentials)
    assert await call(services, await principal(services), "listApiTokens") == []


async def test_earlier_access_token_makes_none_after_a_new_password(services: Services) -> None:
    before = await principal(services)
    await call(services, before, "updateCurrentUser", password="another horse")
    with pytest.raises(Unauthenticated):
        await make(services, before)


async def test_lower_role_revokes_them_and_a_new_name_does_not(services: Services) -> None:
    made, admin = await make(services), await principal(services, "admin")
    user_id = (await principal(services)).subject
    await call(services, admin, "updateUser", userId=user_id, name="Kim")
    await exchange(services, made.token)
    await call(services, admin, "updateUser", userId=user_id, role="user")
    assert isinstance(await fault(services, made.token), BadCredentials)


async def test_what_came_from_an_api_token_makes_no_other(services: Services) -> None:
    caller = await bearer(services, (await make(services)).token)
    with pytest.raises(InsufficientScope):
        await make(services, caller)
    assert len(await call(services, caller, "listApiTokens")) == 1


async def test_what_came_from_an_api_token_changes_no_password(services: Services) -> None:
    """Its own or another's; it makes users and changes all else, as its user may."""
    made = await make(services, await principal(services, "admin"))
    caller = await bearer(services, made.token)
    other = await principal(services)
    for name, raw in (("updateCurrentUser", {}), ("updateUser", {"userId": other.subject})):
        with pytest.raises(InsufficientScope):
            await call(services, caller, name, password="another horse", **raw)
        await call(services, caller, name, name="Kim", **raw)
    await call(services, caller, "createUser", username="new", password="some horse", role="user")
    assert await principal(services) == replace(other, token_id=ANY, issued_ms=ANY, expires_ms=ANY)


async def test_what_came_from_a_revoked_api_token_changes_nobody(services: Services) -> None:
    """Also in the seconds before its process has heard of it."""
    made = await make(services, await principal(services, "admin"))
    caller = await bearer(services, made.token)
    await call(services, await principal(services, "admin"), "deleteApiToken", tokenId=made.id)
    other = await principal(services)
    raw: dict[str, Any] = {"username": "new", "password": "some horse", "role": "user"}
    for name, params in (
        ("createUser", raw),
        ("updateUser", {"userId": other.subject, "name": "Kim"}),
        ("deleteUser", {"userId": other.subject}),
    ):
        with pytest.raises(Unauthenticated):
            await call(services, caller, name, **params)
    assert await principal(services, "producer") is not None


async def test_number_is_bounded(services: Services) -> None:
    caller = await principal(services)
    await make(services, caller)
    async with services.database.connection() as connection:
        await connection.execute(
            "INSERT INTO api_tokens (id, account, user_id, name, secret_hash, created_time)"
            " SELECT 'x' || n, 'demo', $1, 'n', n::text::bytea, now() FROM generate_series(3, $2) AS n",
            caller.subject,
            MAX_API_TOKENS,
        )
    await make(services, caller)
    with pytest.raises(Conflict):
        await make(services, caller)


async def test_same_key_makes_one_and_shows_the_secret_once(services: Services) -> None:
    caller = await principal(services)
    first = await call(services, caller, "createApiToken", key="k", name="mixer")
    again = await call(services, caller, "createApiToken", key="k", name="mixer")
    assert isinstance(again, Json)
    assert again.body == first.model_dump_json(exclude={"token"}).encode()
    assert len(await call(services, caller, "listApiTokens")) == 1
    with pytest.raises(Conflict):
        await call(services, caller, "createApiToken", key="k", name="another")
    async with services.database.connection() as connection:
        (row,) = await connection.fetch("SELECT result FROM idempotency_keys")
    assert first.token.encode() not in row["result"]


async def test_too_many_tries_of_one_text_are_refused(services: Services) -> None:
    for _ in range(10):
        assert isinstance(await fault(services, "brk_wrong"), BadCredentials)
    refused = await fault(services, "brk_wrong")
    assert isinstance(refused, SlowDown)
    assert 55 <= (refused.retry_after_s or 0) <= 60


async def test_too_many_tries_from_one_address_are_refused(services: Services) -> None:
    made = await make(services)
    for number in range(30):
        assert isinstance(await fault(services, f"brk_{number}"), BadCredentials)
    assert isinstance(await fault(services, made.token), SlowDown)


@pytest.mark.parametrize("more", [{"username": "producer"}, {"password": "x"}, {"colour": "red"}])
async def test_fields_of_another_grant_are_refused(services: Services, more: dict[str, Any]) -> None:
    made = await make(services)
    refused = await fault(services, made.token, **more)
    assert type(refused) is InvalidRequest
    assert [fault.field for fault in refused.faults] == list(more)


@pytest.mark.parametrize("token", ["", None])
async def test_missing_token_is_named(services: Services, token: Any) -> None:
    refused = await fault(services, token)
    assert type(refused) is InvalidRequest
    assert [fault.field for fault in refused.faults] == ["token"]


@pytest.mark.parametrize(("length", "kind"), [(16384, BadCredentials), (16385, InvalidRequest)])
async def test_length_is_bounded(services: Services, length: int, kind: type[BrokerError]) -> None:
    assert type(await fault(services, "x" * length)) is kind


@pytest.mark.parametrize("token", ["\x00", "brk_é", "brk_\n"])
async def test_odd_texts_are_unknown(services: Services, token: str) -> None:
    assert isinstance(await fault(services, token), BadCredentials)
