"""Changes whose reply gets lost on the way, through the SDK and the real HTTP door.

Between the reply that is lost and the try that follows, somebody else does something that is acknowledged. It
must still be there afterwards: the repeated change is the first one, and not another one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from broker.client import AsyncClient, Backoff, NewEvent, RetryPolicy
from tests.auth.services import PASSWORD
from tests.client.relay import Relay
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

QUICK = RetryPolicy(deadline_s=20.0, backoff=Backoff(0.001, 0.01))


class Stage:
    """An admin whose replies can be lost, and another one whose replies cannot."""

    def __init__(self, product: Product, relay: Relay, admin: AsyncClient, other: AsyncClient) -> None:
        self.product = product
        self.admin = admin
        self.other = other
        self._relay = relay
        self.losses = 0

    @asynccontextmanager
    async def losing(self, between: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        """Lose the next reply, after `between`."""

        async def lost() -> None:
            self._relay.lost = None
            self.losses += 1
            await between()

        await self.admin.status.ping()  # it has its token
        self._relay.lost = lost
        yield
        assert self.losses == 1, "no reply was lost"


@pytest.fixture(scope="module")
async def product(module_dsn: str, anyio_backend: str) -> AsyncIterator[Product]:
    async with open_product(module_dsn) as product:
        yield product


@pytest.fixture
async def stage(product: Product) -> AsyncIterator[Stage]:
    config = uvicorn.Config(
        product.app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it tells by nothing else
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    relay = Relay(port)
    listening = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = listening.sockets[0].getsockname()[1]
    async with (
        AsyncClient(_url(relay.port), username="admin", password=PASSWORD, retry=QUICK) as admin,
        AsyncClient(_url(port), username="producer", password=PASSWORD) as other,
    ):
        yield Stage(product, relay, admin, other)
    listening.close()
    server.should_exit = True
    await serving


def _url(port: int) -> str:
    return f"http://demo.localhost:{port}"


async def test_deleting_all_events_erases_nothing_that_came_after(stage: Stage) -> None:
    await stage.other.programs.create("erased", "P")
    await stage.other.events.publish_batch("erased", [NewEvent("A#b")] * 3)

    async with stage.losing(lambda: stage.other.publish("erased", "A#kept")):
        assert await stage.admin.events.delete_all("erased") == 3
    assert [event.event for event in await stage.other.events.list("erased")] == ["A#kept"]


async def test_import_replaces_nothing_that_came_after(stage: Stage) -> None:
    await stage.other.programs.create("imported", "P")
    await stage.other.publish("imported", "A#old")

    async with stage.losing(lambda: stage.other.publish("imported", "A#kept", timecode=9)):
        done = await stage.admin.events.import_all("imported", b'{"events":[{"event":"A#new","timecode":1}]}')
    assert (done.deleted, done.imported) == (1, 1)
    assert [event.event for event in await stage.other.events.list("imported")] == ["A#new", "A#kept"]


async def test_program_that_was_made_again_is_not_deleted(stage: Stage) -> None:
    await stage.other.programs.create("again", "P")

    async with stage.losing(lambda: stage.other.programs.create("again", "Another")):
        await stage.admin.programs.delete("again")
    assert (await stage.other.programs.get("again")).name == "Another"


async def test_change_of_a_program_is_not_made_again(stage: Stage) -> None:
    await stage.other.programs.create("renamed", "P")

    async with stage.losing(lambda: stage.other.programs.update("renamed", "Later", None, None)):
        assert (await stage.admin.programs.update("renamed", "First", None, None)).name == "First"
    assert (await stage.other.programs.get("renamed")).name == "Later"


async def test_change_of_an_event_is_not_made_again(stage: Stage) -> None:
    await stage.other.programs.create("corrected", "P")
    made = await stage.other.publish("corrected", "A#b")

    async with stage.losing(lambda: stage.other.events.update("corrected", made.id, timecode=2)):
        assert (await stage.admin.events.update("corrected", made.id, timecode=1)).timecode == 1
    assert (await stage.other.events.get("corrected", made.id)).timecode == 2


async def test_event_that_is_deleted_is_deleted_once(stage: Stage) -> None:
    await stage.other.programs.create("shortened", "P")
    made = await stage.other.publish("shortened", "A#b")

    async with stage.losing(stage.other.status.ping):
        await stage.admin.events.delete("shortened", made.id)
    assert (await stage.other.programs.get_last_update("shortened")).cursor.seq == 2


async def test_change_that_depends_on_a_tag_answers_as_at_first(stage: Stage) -> None:
    made = await stage.admin.projects.create("P")
    async with stage.losing(stage.other.status.ping):
        changed = await stage.admin.projects.update(made.id, name="Q", if_match=made.etag)
    assert (changed.name, changed.etag is None) == ("Q", False)
    assert (await stage.admin.projects.get(made.id)).etag == changed.etag
    await stage.admin.projects.delete(made.id)


async def test_patch_is_applied_once(stage: Stage) -> None:
    project = await stage.admin.projects.create("P")
    made = await stage.admin.revisions.create(project.id, {"n": [1]})
    async with stage.losing(stage.other.status.ping):
        patch = [{"op": "add", "path": "/content/n/-", "value": 2}]
        changed = await stage.admin.revisions.patch(project.id, made.id, patch)
    assert changed.content == {"n": [1, 2]}
    assert (await stage.admin.revisions.get(project.id, made.id)).content == {"n": [1, 2]}


async def test_project_that_was_made_again_is_not_deleted(stage: Stage) -> None:
    await stage.admin.projects.create("P", project_id="reborn")

    async def make_again() -> None:
        await stage.admin.projects.create("Another", project_id="reborn")

    async with stage.losing(make_again):
        await stage.admin.projects.delete("reborn", cascade=True)
    assert (await stage.admin.projects.get("reborn")).name == "Another"


async def test_user_is_made_changed_and_deleted_once(stage: Stage) -> None:
    users = stage.admin.users
    async with stage.losing(stage.other.status.ping):
        made = await users.create("kim", "correct horse battery", "user")
    stage.losses = 0
    async with stage.losing(lambda: users.update(made.id, name="Later")):
        assert (await users.update(made.id, name="First")).name == "First"
    assert (await users.get(made.id)).name == "Later"
    stage.losses = 0
    async with stage.losing(lambda: users.create("kim", "correct horse battery", "user")):
        await users.delete(made.id)
    assert [user.id != made.id for user in await users.list() if user.username == "kim"] == [True]


async def test_api_token_whose_secret_got_lost_is_revoked(stage: Stage) -> None:
    async with stage.losing(stage.other.status.ping):
        made = await stage.admin.api_tokens.create("mixer")
    assert made.token is not None
    assert [token.id for token in await stage.admin.api_tokens.list()] == [made.id]
