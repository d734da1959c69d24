from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.domain.users import Principal
from broker.errors import (
    BadCredentials,
    BrokerError,
    InvalidClient,
    InvalidRequest,
    SlowDown,
    UnsupportedGrantType,
)
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.operations.results import Reply
from broker.operations.services import Services
from broker.resources.tokens import LOGIN, LoginParams, TokenResponse
from tests.auth.services import PASSWORD, make_user, open_services

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

GOOD = {"grant_type": "password", "client_id": "Test", "username": "kim", "password": PASSWORD}


@pytest.fixture
async def services(migrated_dsn: str) -> AsyncIterator[Services]:
    async with open_services(migrated_dsn) as services:
        await make_user(services.database, services.auth, "kim")
        yield services


async def log_in(services: Services, raw: dict[str, Any], account: str = "demo") -> Reply:
    context = Context(services, Principal(account), "request-1", address="192.0.2.1")
    result = await invoke(LOGIN, context, raw)
    assert isinstance(result, Reply)
    return result


async def fault(services: Services, raw: dict[str, Any]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await log_in(services, raw)
    return caught.value


async def test_answer_is_a_bearer_token_that_nobody_stores(services: Services) -> None:
    reply = await log_in(services, GOOD)
    assert isinstance(reply.value, TokenResponse)
    body = reply.value.model_dump(mode="json")
    assert list(body) == ["access_token", "token_type", "expires_in"]
    assert (body["token_type"], body["expires_in"]) == ("Bearer", 3600)
    assert reply.headers["Cache-Control"] == "no-store"
    principal = await services.auth.authenticate("demo", body["access_token"])
    assert principal.username == "kim"


@pytest.mark.parametrize(
    "client_id",
    ["WebProducerDashboard", "Test", "VisionMixer", "DashboardScript", "GraphicsSystem", "MediaSequencer"],
)
async def test_each_client_id_is_accepted(services: Services, client_id: str) -> None:
    await log_in(services, {**GOOD, "client_id": client_id})


@pytest.mark.parametrize("client_id", ["", None, "test", "Test ", "Other"])
async def test_missing_or_other_client_id_is_an_invalid_client(
    services: Services, client_id: str | None
) -> None:
    error = await fault(services, {**GOOD, "client_id": client_id})
    assert isinstance(error, InvalidClient)
    assert (error.status, error.name) == (400, "invalid_client")
    assert error.faults[0].field == "client_id"


@pytest.mark.parametrize(
    "grant_type",
    ["client_credentials", "Password", "API_token", "token", "jwt-bearer"],
)
async def test_other_grants_are_unsupported_whatever_they_carry(services: Services, grant_type: str) -> None:
    error = await fault(services, {"grant_type": grant_type, "client_id": "Test", "token": "x"})
    assert isinstance(error, UnsupportedGrantType)
    assert (error.status, error.name) == (400, "unsupported_grant_type")


@pytest.mark.parametrize("name", ["username", "password"])
@pytest.mark.parametrize("absent", [None, ""])
async def test_missing_credentials_are_an_invalid_request(
    services: Services, name: str, absent: str | None
) -> None:
    error = await fault(services, {**GOOD, name: absent})
    assert (error.status, error.name) == (400, "invalid_request")
    assert [f.field for f in error.faults] == [name]


async def test_both_missing_credentials_are_named(services: Services) -> None:
    error = await fault(services, {"grant_type": "password", "client_id": "Test"})
    assert [f.field for f in error.faults] == ["username", "password"]


async def test_unknown_field_is_named(services: Services) -> None:
    error = await fault(services, {**GOOD, "colour": "red"})
    assert (error.name, error.faults[0].field) == ("invalid_request", "colour")


@pytest.mark.parametrize(("name", "value"), [("username", 7), ("password", ["x"]), ("grant_type", True)])
async def test_wrong_type_is_named_without_its_value(services: Services, name: str, value: object) -> None:
    error = await fault(services, {**GOOD, name: value})
    assert type(error) is InvalidRequest
    assert [f.field for f in error.faults] == [name]
    assert repr(value) not in error.message


@pytest.mark.parametrize(("length", "kind"), [(1000, BadCredentials), (1001, InvalidRequest)])
@pytest.mark.parametrize("name", ["username", "password"])
async def test_length_is_bounded(services: Services, name: str, length: int, kind: type[BrokerError]) -> None:
    assert type(await fault(services, {**GOOD, name: "x" * length})) is kind


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({}, "invalid_request"),
        ({"client_id": "Nobody"}, "invalid_request"),
        ({"grant_type": "other"}, "invalid_client"),
        ({"grant_type": "password", "username": "kim"}, "invalid_client"),
        ({"grant_type": "other", "client_id": "Nobody"}, "invalid_client"),
        ({"grant_type": "other", "client_id": "Test", "colour": "red"}, "unsupported_grant_type"),
        ({"grant_type": "password", "client_id": "Test", "colour": "red"}, "invalid_request"),
        ({"grant_type": 7}, "invalid_request"),
    ],
)
async def test_first_fault_in_order_is_told(services: Services, raw: dict[str, Any], error: str) -> None:
    assert (await fault(services, raw)).name == error


async def test_missing_grant_type_is_named(services: Services) -> None:
    error = await fault(services, {"client_id": "Test"})
    assert [f.field for f in error.faults] == ["grant_type"]


async def test_wrong_password_is_401_and_too_many_429(services: Services) -> None:
    for _ in range(10):
        error = await fault(services, {**GOOD, "password": "wrong horse"})
        assert (error.status, error.name) == (401, "bad_credentials")
    error = await fault(services, GOOD)
    assert isinstance(error, SlowDown)
    assert (error.status, error.name) == (429, "slow_down")
    assert 55 <= (error.retry_after_s or 0) <= 60


async def test_requests_with_faults_do_not_count_as_tries(services: Services) -> None:
    for _ in range(12):
        await fault(services, {**GOOD, "client_id": "Other"})
        await fault(services, {**GOOD, "password": ""})
    await log_in(services, GOOD)


async def test_users_of_another_account_are_unknown(services: Services) -> None:
    with pytest.raises(BadCredentials):
        await log_in(services, GOOD, account="other")


def test_secrets_are_in_no_repr() -> None:
    params = LoginParams.model_validate({**GOOD, "token": "hidden-token"})
    answer = TokenResponse(access_token="hidden-token", expires_in=1)
    for text in (repr(params), str(params), f"{params}", repr(answer), str(answer)):
        assert "hidden-token" not in text
        assert PASSWORD not in text


IDENTITY = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.mark.parametrize("client", [{}, {"client_id": ""}, {"client_id": "Test"}])
async def test_identity_token_of_a_stranger_is_refused(services: Services, client: dict[str, str]) -> None:
    error = await fault(services, {"grant_type": IDENTITY, "token": "a.b.c"} | client)
    assert (error.status, error.name) == (401, "bad_credentials")


@pytest.mark.parametrize(
    ("raw", "name", "field"),
    [
        ({}, "invalid_request", "token"),
        ({"token": ""}, "invalid_request", "token"),
        ({"token": "t", "username": "kim"}, "invalid_request", "username"),
        ({"token": "t", "assertion": "t"}, "invalid_request", "assertion"),
        ({"token": "t", "client_id": "Other"}, "invalid_client", "client_id"),
    ],
)
async def test_faults_of_an_identity_log_in(
    services: Services, raw: dict[str, Any], name: str, field: str
) -> None:
    error = await fault(services, {"grant_type": IDENTITY} | raw)
    assert (error.name, [f.field for f in error.faults]) == (name, [field])
