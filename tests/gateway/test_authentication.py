import asyncio
from typing import Any

import orjson
import pytest
from websockets.exceptions import InvalidStatus

from broker.clock import SystemClock, to_datetime
from broker.domain.values import format_time
from tests.auth.services import PASSWORD
from tests.gateway.test_calls import fails
from tests.gateway.world import RpcError, Viewer, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LOGIN = {"grant_type": "password", "client_id": "Test"}


async def refusal(error: InvalidStatus) -> tuple[int, str]:
    return error.response.status_code, orjson.loads(error.response.body)["error"]


async def test_token_in_the_header_signs_in(world: World) -> None:
    viewer = await world.join("producer")
    assert (await viewer.call("getCurrentUser"))["username"] == "producer"


async def test_token_in_the_query_signs_in(world: World) -> None:
    viewer = await world.join(query=f"?access_token={world.product.tokens['user']}")
    assert (await viewer.call("getCurrentUser"))["username"] == "user"


@pytest.mark.parametrize("token", ["no-token", "a.b.c", "x" * 4_000])
async def test_bad_token_is_refused_at_the_handshake(world: World, token: str) -> None:
    for join in (world.join(token=token), world.join(query=f"?access_token={token}")):
        with pytest.raises(InvalidStatus) as caught:
            await join
        assert await refusal(caught.value) == (401, "invalid_token")
        assert caught.value.response.headers["WWW-Authenticate"] == "Bearer"
        assert caught.value.response.headers["X-Request-Id"]


async def test_token_of_another_account_is_refused(world: World) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await world.join(token=world.product.other["admin"])
    assert await refusal(caught.value) == (401, "invalid_token")


async def test_unknown_account_is_not_found(world: World) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await world.join(account="nobody")
    assert await refusal(caught.value) == (404, "not_found")


async def test_anonymous_connection_has_no_rights_of_a_user(world: World) -> None:
    viewer = await world.join()
    with pytest.raises(RpcError) as caught:
        await viewer.call("getCurrentUser")
    assert (caught.value.code, caught.value.name) == (401, "invalid_token")
    assert caught.value.data["status"] == 401
    assert (await viewer.call("servertime", requestTime=5))["requestTime"] == 5


async def test_login_gives_the_connection_a_session(world: World) -> None:
    viewer = await world.join()
    token = await viewer.call("login", **LOGIN, username="producer", password=PASSWORD)
    assert token["token_type"] == "Bearer"
    assert (await viewer.call("getCurrentUser"))["username"] == "producer"


async def test_calls_sent_with_a_login_have_its_session(world: World) -> None:
    viewer = await world.join()
    numbers = [
        await viewer.send("login", **LOGIN, username="user", password=PASSWORD),
        await viewer.send("getCurrentUser"),
        await viewer.send("getCurrentUser"),
    ]
    _, first, second = [await viewer.answer(number) for number in numbers]
    assert (first["username"], second["username"]) == ("user", "user")


async def test_private_program_opens_after_login(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    viewer = await world.join()
    with pytest.raises(RpcError):
        await viewer.call("subscribe", programId=program)
    await viewer.call("login", **LOGIN, username="user", password=PASSWORD)
    assert (await viewer.call("subscribe", programId=program))["seq"] == 0


async def test_failed_login_changes_nothing(world: World) -> None:
    viewer = await world.join("user")
    with pytest.raises(RpcError) as caught:
        await viewer.call("login", **LOGIN, username="producer", password="wrong password")
    assert (caught.value.code, caught.value.name) == (401, "bad_credentials")
    assert (await viewer.call("getCurrentUser"))["username"] == "user"


async def test_expiring_token_is_announced_and_its_rights_end(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    principal = await world.product.services.auth.authenticate("demo", world.product.tokens["user"])
    assert principal.expires_ms is not None
    assert principal.issued_ms is not None
    lifetime_ms = principal.expires_ms - principal.issued_ms
    world.product.clock.forward_ms = 2_500 - lifetime_ms  # issued long ago, as the machine's clock has it
    token = await world.new_user("short-lived", "user", "own")
    viewer = await world.join(token=token)
    world.product.clock.forward_ms = 0
    await viewer.call("subscribe", programId=program)
    expiring = await viewer.next("tokenExpiring")
    assert 0 < expiring["expiresInMs"] <= 2_500
    ended = await viewer.next("unsubscribed")
    assert ended["programId"] == program
    with pytest.raises(RpcError) as caught:
        await viewer.call("subscribe", programId=program)
    assert caught.value.code == 401
    # The connection stays, as an anonymous one.
    public = await world.program()
    assert (await viewer.call("subscribe", programId=public))["seq"] == 0


async def test_revoked_token_ends_private_subscriptions_of_open_connections(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    viewer = await world.join(token=await world.new_user("leaver", "user", "own"))
    await viewer.call("subscribe", programId=program)
    profile = await viewer.call("getCurrentUser")
    admin = await world.admin()
    await admin.call("deleteUser", userId=profile["id"])
    async with asyncio.timeout(5):
        assert (await viewer.next("unsubscribed"))["programId"] == program
    with pytest.raises(RpcError) as caught:
        await viewer.call("getCurrentUser")
    assert caught.value.code == 401


async def test_what_came_from_an_api_token_ends_with_it_on_open_connections(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    user = await world.join(token=await world.new_user("machine", "user", "own"))
    made = await user.call("createApiToken", name="mixer")
    viewer = await world.join()
    await viewer.call("login", grant_type="api_token", client_id="Test", token=made["token"])
    await viewer.call("subscribe", programId=program)
    await user.call("deleteApiToken", tokenId=made["id"])
    async with asyncio.timeout(5):
        assert (await viewer.next("unsubscribed"))["programId"] == program
    with pytest.raises(RpcError) as caught:
        await viewer.call("getCurrentUser")
    assert caught.value.code == 401
    assert (await user.call("getCurrentUser"))["username"] == "machine"


async def test_a_channel_that_ends_has_the_name_that_was_subscribed_to(world: World) -> None:
    viewer = await world.join(token=await world.new_user("watcher", "user", "own"))
    await viewer.call("subscribe", channel="programs")
    profile = await viewer.call("getCurrentUser")
    await (await world.admin()).call("deleteUser", userId=profile["id"])
    assert (await viewer.next("unsubscribed"))["channel"] == "programs"


async def test_user_that_leaves_a_project_loses_its_private_programs(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    other = await world.program(access="private", projectId="second")
    token = await world.new_user("mover", "user", "own", "second")
    viewer = await world.join(token=token)
    await viewer.call("subscribe", programId=program)
    await viewer.call("subscribe", programId=other)
    profile = await viewer.call("getCurrentUser")
    admin = await world.admin()
    fields = {name: profile[name] for name in ("username", "role")}
    await admin.call("updateUser", userId=profile["id"], **fields, projectIds=["second"])
    assert await viewer.next("unsubscribed") == {"programId": program, "reason": "insufficient_scope"}
    # The connection stays signed in, with the rights of now, and follows what it may follow.
    assert (await viewer.call("getCurrentUser"))["projectIds"] == ["second"]
    await admin.call("producer", programId=other, event="A#b")
    assert (await viewer.next("event"))["programId"] == other
    # So does the token.
    again = await world.join(token=token)
    assert (await again.call("getCurrentUser"))["projectIds"] == ["second"]
    with pytest.raises(RpcError) as caught:
        await again.call("subscribe", programId=program)
    assert caught.value.code == 404


async def test_what_a_user_may_follow_goes_on_through_every_change_of_its_rights(world: World) -> None:
    admin = await world.admin()
    await admin.call("createProject", id="going", name="n")
    program = await world.program(access="private", projectId="own")
    viewer = await world.join(token=await world.new_user("riser", "user", "own", "going"))
    await viewer.call("subscribe", programId=program)
    profile = await viewer.call("getCurrentUser")
    user = {"userId": profile["id"], "username": profile["username"]}

    async def call_once_allowed(method: str, **params: Any) -> Any:
        codes = set()
        async with asyncio.timeout(10):
            while codes <= {403}:  # 401: the connection was signed out
                try:
                    return await viewer.call(method, **params)
                except RpcError as error:
                    codes.add(error.code)
                await asyncio.sleep(0.01)
        pytest.fail(f"{method} was refused with {codes}")

    async def follows(event: dict[str, Any]) -> None:
        assert (await viewer.next())["params"].get("id") == event["id"], "it was told something else first"

    await admin.call("deleteProject", projectId="going")
    await follows(await admin.call("producer", programId=program, event="A#b"))
    await admin.call("updateUser", **user, role="producer", projectIds=["own"])
    await follows(await call_once_allowed("producer", programId=program, event="A#b"))
    await admin.call("updateUser", **user, role="admin", projectIds=[])
    await call_once_allowed("listUsers")
    await follows(await viewer.call("producer", programId=program, event="A#b"))


async def test_changed_password_ends_earlier_sessions_only(world: World) -> None:
    token = await world.new_user("changer", "user", "own")
    old = await world.join(token=token)
    await old.call("updateCurrentUser", password="another horse")
    new = await world.join()
    await new.call("login", **LOGIN, username="changer", password="another horse")
    async with asyncio.timeout(5):
        assert (await until_refused(old)).code == 401
    with pytest.raises(InvalidStatus):
        await world.join(token=token)
    assert (await new.call("getCurrentUser"))["username"] == "changer"


async def until_refused(viewer: Viewer) -> RpcError:
    """The error with which the connection is refused, as soon as it is."""
    while True:
        try:
            await viewer.call("getCurrentUser")
        except RpcError as error:
            return error


async def test_access_token_in_params_authenticates_that_call(world: World) -> None:
    tokens = world.product.tokens
    viewer = await world.join()
    assert (await viewer.call("getCurrentUser", access_token=tokens["user"]))["username"] == "user"
    assert (await fails(viewer, "getCurrentUser")).code == 401
    program = await world.program()
    await viewer.call("producer", programId=program, event="A#b", access_token=tokens["producer"])
    producer = await world.join("producer")
    assert (await producer.call("getCurrentUser", access_token=tokens["user"]))["username"] == "user"
    assert (await producer.call("getCurrentUser"))["username"] == "producer"
    for bad in ("whatever", "", 5, world.product.other["user"]):
        assert (await fails(producer, "getCurrentUser", access_token=bad)).code == 401
        assert (await fails(viewer, "servertime", access_token=bad)).code == 401
        assert (await fails(viewer, "subscribe", programId=program, access_token=bad)).code == 401


async def test_who_subscribes_with_a_token_is_signed_in(world: World) -> None:
    """A subscription lasts as long as its connection's rights, so the token becomes the connection's."""
    program = await world.program(access="private")
    viewer = await world.join()
    refused = await fails(viewer, "subscribe", programId=program)
    unknown = await fails(viewer, "subscribe", programId="mistyped")
    assert (refused.code, unknown.code) == (401, 401)
    assert unknown.data["error_description"] == (
        "there is no public program mistyped; an access token is required"
    )
    assert refused.data["error_description"].replace(program, "mistyped") == unknown.data["error_description"]
    token = world.product.tokens["admin"]
    assert (await viewer.call("subscribe", programId=program, access_token=token))["programId"] == program
    await world.publish(program)
    assert (await viewer.next("event"))["programId"] == program
    assert (await viewer.call("getCurrentUser"))["username"] == "admin"
    await viewer.call("unsubscribe", programId=program, access_token=token)
    await world.publish(program)
    await viewer.call("servertime")
    assert viewer.told.empty()


async def test_origin_must_be_on_the_accounts_list(world: World) -> None:
    services = world.product.services
    await services.accounts.set_origins("other", ("https://good.example",))
    await world.gateway._read_accounts()
    viewer = await world.join(account="other", origin="https://good.example")
    assert await viewer.call("servertime")
    assert await (await world.join(account="other")).call("servertime")
    with pytest.raises(InvalidStatus) as caught:
        await world.join(account="other", origin="https://bad.example")
    assert caught.value.response.status_code == 403
    await services.accounts.set_origins("other", None)
    await world.gateway._read_accounts()


async def api_token(world: World, username: str, role: str = "user", **fields: Any) -> tuple[Viewer, Any]:
    """A new user of the project `own` on a connection of its own, and an API token of it."""
    user = await world.join(token=await world.new_user(username, role, "own"))
    return user, await user.call("createApiToken", name="mixer", **fields)


async def test_an_api_token_signs_in_as_a_bearer_token_does(world: World) -> None:
    user, made = await api_token(world, "crew")
    token = made["token"]
    for joined in (world.join(token=token), world.join(query=f"?access_token={token}")):
        assert (await (await joined).call("getCurrentUser"))["username"] == "crew"
    viewer = await world.join()
    assert (await viewer.call("getCurrentUser", access_token=token))["username"] == "crew"
    assert (await fails(viewer, "getCurrentUser")).code == 401
    program = await world.program(access="private", projectId="own")
    await viewer.call("subscribe", programId=program, access_token=token)
    assert (await viewer.call("getCurrentUser"))["username"] == "crew"
    with pytest.raises(InvalidStatus) as caught:
        await world.join(token=token, account="other")
    assert await refusal(caught.value) == (401, "invalid_token")
    refused = await fails(viewer, "createApiToken", name="heir")
    assert refused.code == 403
    assert (await fails(viewer, "updateCurrentUser", password="another horse")).code == 403
    assert (await user.call("getCurrentUser"))["username"] == "crew"


@pytest.mark.parametrize("how", ["revoked", "password"])
async def test_an_api_token_that_ends_takes_open_connections_with_it(world: World, how: str) -> None:
    program = await world.program(access="private", projectId="own")
    user, made = await api_token(world, f"crew-{how}")
    viewer = await world.join(token=made["token"])
    await viewer.call("subscribe", programId=program)
    if how == "revoked":
        await user.call("deleteApiToken", tokenId=made["id"])
    else:
        await user.call("updateCurrentUser", password="another horse")
    async with asyncio.timeout(5):
        assert (await viewer.next("unsubscribed"))["programId"] == program
    assert (await fails(viewer, "getCurrentUser")).code == 401
    for join in (world.join(token=made["token"]), world.join(query=f"?access_token={made['token']}")):
        with pytest.raises(InvalidStatus) as caught:
            await join
        assert await refusal(caught.value) == (401, "invalid_token")


async def test_an_api_tokens_end_is_announced_and_comes(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    expires = to_datetime(SystemClock().now_ms() + 3_000)
    _, made = await api_token(world, "brief", expires=format_time(expires))
    viewer = await world.join(token=made["token"])
    await viewer.call("subscribe", programId=program)
    assert 0 < (await viewer.next("tokenExpiring"))["expiresInMs"] <= 3_000
    assert (await viewer.next("unsubscribed"))["programId"] == program
    assert (await fails(viewer, "getCurrentUser")).code == 401


async def test_a_loss_of_rights_reaches_connections_of_an_api_token(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    user, made = await api_token(world, "leaver-of-own")
    viewer = await world.join(token=made["token"])
    await viewer.call("subscribe", programId=program)
    profile = await user.call("getCurrentUser")
    fields = {name: profile[name] for name in ("username", "role")}
    await (await world.admin()).call("updateUser", userId=profile["id"], **fields, projectIds=["second"])
    assert await viewer.next("unsubscribed") == {"programId": program, "reason": "insufficient_scope"}
    assert (await viewer.call("getCurrentUser"))["projectIds"] == ["second"]


async def test_many_invented_api_tokens_at_the_handshake_are_slowed(world: World) -> None:
    _, made = await api_token(world, "neighbour")
    before = await world.join(token=made["token"])
    seen = set()
    for number in range(40):
        with pytest.raises(InvalidStatus) as caught:
            await world.join(token=f"brk_{number:043}")
        seen.add(await refusal(caught.value))
        if caught.value.response.status_code == 429:
            assert int(caught.value.response.headers["Retry-After"]) <= 60
    assert seen == {(401, "invalid_token"), (429, "slow_down")}
    # What is known already goes on, at new handshakes too.
    assert (await before.call("getCurrentUser"))["username"] == "neighbour"
    assert (await (await world.join(token=made["token"])).call("getCurrentUser"))["username"] == "neighbour"
