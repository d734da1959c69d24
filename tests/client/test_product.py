"""The SDK against the real HTTP door with a real owner and a real PostgreSQL behind it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
import uvicorn
from msgspec.structs import replace

from broker.client import (
    Answer,
    ApiError,
    AsyncClient,
    BadCredentials,
    Client,
    Conflict,
    Counted,
    Impression,
    InsufficientScope,
    InvalidRequest,
    LiveResults,
    NewEvent,
    NotFound,
    PreconditionFailed,
    ReportImpressions,
    ReportOption,
    Unauthenticated,
)
from tests.auth.services import PASSWORD
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

START, END = datetime(2026, 7, 19, 19, tzinfo=UTC), datetime(2026, 7, 19, 22, tzinfo=UTC)


@pytest.fixture
async def product(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[Product]:
    async with open_product(migrated_dsn) as product:
        yield product


@pytest.fixture
async def url(product: Product) -> AsyncIterator[str]:
    config = uvicorn.Config(
        product.app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it tells by nothing else
        await asyncio.sleep(0.01)
    yield f"http://demo.localhost:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


async def test_life_of_a_program(url: str) -> None:
    async with AsyncClient(url, username="producer", password=PASSWORD) as client:
        made = await client.programs.create("final", "The final", access="private", metadata={"a": 1})
        assert (made.access, made.metadata, made.live) == ("private", {"a": 1}, False)
        assert await client.programs.get("final") == made
        with pytest.raises(Conflict):
            await client.programs.create("final", "Another")
        changed = await client.programs.update("final", "Final", START, END, metadata=None)
        assert (changed.name, changed.scheduled_start_time, changed.metadata) == ("Final", START, None)
        assert changed.access == "private"
        page = await client.programs.filter(ids=["final"], status="scheduled", from_time=START, to_time=END)
        assert page.total <= 1
        await client.programs.delete("final")
        with pytest.raises(NotFound):
            await client.programs.get("final")


async def test_statistics_and_the_audit_log(url: str, product: Product) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        made = await client.programs.create(
            "live", "Now", scheduled_start_time="2020-01-01", scheduled_end_time=END
        )
        await client.publish("live", "A#b")
        await product.owners.owner._recorder.flush()
        await client.status.ping()
        now = await client.statistics.get_dashboard()
        assert (now.events_per_minute, now.programs_live) == (1, int(made.live))
        assert [each.username for each in now.producers_online] == ["admin"]
        assert [each.program_id for each in now.top_programs] == ["live"]
        points = await client.statistics.get_series(program_id="live")
        assert (len(points), sum(point.events for point in points)) == (60, 1)
        points = await client.statistics.get_series(from_time=START, to_time=END, interval="hour")
        assert points[0].time == START
        assert [each.id for each in await client.statistics.list_live_programs()] == ["live"] * made.live
        await client.programs.delete("live")
        page = await client.audit.filter(actions=["program.deleted"], limit=1)
        assert [(entry.target_id, entry.username) for entry in page.items] == [("live", "admin")]

    def look() -> None:
        with Client(url, username="user", password=PASSWORD) as client:
            assert client.statistics.get_dashboard().connections == 0
            with pytest.raises(InsufficientScope):
                client.audit.filter()

    await asyncio.to_thread(look)


async def test_life_of_events(url: str, tmp_path: Path) -> None:
    async with AsyncClient(url, username="producer", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
        assert (await client.programs.get_last_update("final")).timestamp_ms is None
        one = await client.publish("final", "Score#update", {"home": 1}, timestamp=10)
        two, three = await client.events.publish_batch(
            "final", [NewEvent("A#b", timecode=5), NewEvent("C#d")]
        )
        assert [one.seq, two.seq, three.seq] == [1, 2, 3]
        assert [event.id for event in await client.events.list("final", to_timecode=10)] == [two.id, one.id]
        assert [event.seq async for event in client.events.iterate("final")] == [2, 1, 3]
        assert (await client.events.filter("final", search="score")).items == (one,)
        changed = await client.events.update("final", one.id, metadata={"home": 2})
        assert changed.metadata == {"home": 2}
        await client.events.delete("final", three.id)
        with pytest.raises(NotFound):
            await client.events.get("final", three.id)
        update = await client.programs.get_last_update("final")
        assert (update.cursor.epoch, update.cursor.seq) == (one.epoch, 5)

        file = tmp_path / "export.json"
        file.write_bytes(b"".join([chunk async for chunk in client.events.export_all("final")]))
        assert [event["id"] for event in orjson.loads(file.read_bytes())["events"]] == [two.id, one.id]
        assert await client.events.delete_all("final") == 2
        imported = await client.events.import_all("final", file)
        assert (imported.deleted, imported.imported) == (0, 2)
        again = await client.events.import_all("final", await client.events.list("final"))
        assert (again.deleted, again.imported) == (2, 2)


async def test_same_key_publishes_once(url: str) -> None:
    async with AsyncClient(url, username="producer", password=PASSWORD) as client:
        await client.programs.create("final", "The final")
        first = await client.publish("final", "A#b", idempotency_key="k")
        assert await client.publish("final", "A#b", idempotency_key="k") == first
        with pytest.raises(Conflict):
            await client.publish("final", "C#d", idempotency_key="k")
        assert len(await client.events.list("final")) == 1


async def test_refusals_have_their_types(url: str) -> None:
    async with AsyncClient(url, username="producer", password="wrong") as client:
        with pytest.raises(BadCredentials):
            await client.status.ping()
    async with AsyncClient(url) as client:
        with pytest.raises(Unauthenticated):
            await client.programs.create("x", "X")
    async with AsyncClient(url, username="client", password=PASSWORD) as client:
        with pytest.raises(InsufficientScope):
            await client.programs.create("x", "X")
    async with AsyncClient(url, username="producer", password=PASSWORD) as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.events.publish_batch("x", [NewEvent("A#b"), NewEvent("bad")])
        assert refused.value.fields[0].field == "events[1].event"
        assert refused.value.request_id


async def test_changes_that_depend_on_a_tag(url: str) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        project = await client.projects.create("Football", project_id="football")
        assert project.etag == (await client.projects.get("football")).etag
        renamed = await client.projects.update("football", name="F", if_match=project.etag)
        assert renamed.etag != project.etag
        with pytest.raises(PreconditionFailed):
            await client.projects.update("football", name="G", if_match=project.etag)
        first = await client.revisions.create("football", {"a": 1})
        second = await client.revisions.update("football", first.id, title="T", if_match=first.etag)
        third = await client.revisions.patch("football", first.id, {"title": "U"}, if_match=second.etag)
        assert (await client.revisions.get("football", first.id)).etag == third.etag
        for stale in (first.etag, second.etag):
            with pytest.raises(PreconditionFailed):
                await client.revisions.update("football", first.id, title="V", if_match=stale)
            with pytest.raises(PreconditionFailed):
                await client.revisions.patch("football", first.id, {"title": "V"}, if_match=stale)
        assert (await client.revisions.list("football"))[0] == third
        assert await asyncio.to_thread(_rename, url, renamed.etag) == "H"


def _rename(url: str, etag: str | None) -> str:
    with Client(url, username="admin", password=PASSWORD) as client:
        return client.projects.update("football", name="H", if_match=etag).name


async def test_life_of_a_user(url: str) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        made = await client.users.create("ada", "correct-horse", "user", name="Ada", project_ids=["own"])
        assert (made.username, made.role, made.project_ids) == ("ada", "user", ("own",))
        assert made in await client.users.list()
        changed = await client.users.update(made.id, email="ada@example.org", name=None)
        assert (changed.email, changed.name) == ("ada@example.org", None)
        await client.users.delete(made.id)
        with pytest.raises(NotFound):
            await client.users.get(made.id)
        assert (await client.users.get_me()).username == "admin"
        assert set(await client.users.list_roles()) == {"admin", "producer", "client", "user"}


async def test_life_of_an_api_token(url: str) -> None:
    async with AsyncClient(url, username="producer", password=PASSWORD) as client:
        made = await client.api_tokens.create("mixer", datetime(2100, 1, 1, tzinfo=UTC))
        assert made.token is not None
        assert made.token not in repr(made)
        assert await client.api_tokens.list() == (replace(made, token=None),)
        async with AsyncClient(url, api_token=made.token, client_id="VisionMixer") as program:
            assert (await program.users.get_me()).username == "producer"
            await client.api_tokens.delete(made.id)
            with pytest.raises(BadCredentials):
                await program.tokens.create()
        with pytest.raises(NotFound):
            await client.api_tokens.delete(made.id)


async def test_two_kinds_of_credentials_are_refused() -> None:
    with pytest.raises(ValueError, match="only one of"):
        AsyncClient("http://demo.localhost", api_token="a", token="b")


async def test_life_of_a_project(url: str) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        made = await client.projects.create("Own", project_id="own", metadata={"a": 1})
        assert (made.id, made.name, made.metadata) == ("own", "Own", {"a": 1})
        assert await client.projects.list() == (made,)
        changed = await client.projects.update("own", description="d", metadata=None)
        assert (changed.description, changed.metadata) == ("d", {})
        assert await client.projects.get("own") == changed
        program = await client.programs.create("final", "The final", project_id="own")
        assert await client.projects.list_programs("own") == (program,)
        users = await client.projects.list_users("own")
        assert {user.username for user in users} == {"admin", "producer", "user", "client"}
        with pytest.raises(Conflict):
            await client.projects.delete("own")
        await client.projects.delete("own", cascade=True)
        with pytest.raises(NotFound):
            await client.programs.get("final")


async def test_life_of_a_stored_value(url: str) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as admin, AsyncClient(url) as anybody:
        await admin.projects.create("Own", project_id="own")
        made = await anybody.storage.store("own", {"a": 1}, item_id="x")
        assert await anybody.storage.get("own", "x") == made
        assert made.metadata == {"a": 1}
        with pytest.raises(Conflict):
            await anybody.storage.store("own", {}, item_id="x")
        assert (await admin.storage.store("own", {"a": 2}, item_id="x")).metadata == {"a": 2}
        with pytest.raises(NotFound):
            await anybody.storage.get("own", (await anybody.storage.store("own", {})).id + "x")
        with pytest.raises(Unauthenticated):
            await anybody.storage.delete("own", "x")
        await admin.storage.delete("own", "x")
        with pytest.raises(NotFound):
            await admin.storage.delete("own", "x")


async def test_life_of_a_revision(url: str) -> None:
    async with AsyncClient(url, username="admin", password=PASSWORD) as admin, AsyncClient(url) as anybody:
        await admin.projects.create("Own", project_id="own")
        made = await admin.revisions.create("own", {"token": "t", "n": 1}, title="T")
        assert (made.version, made.status, made.title) == ("1", "draft", "T")
        assert await admin.revisions.get_latest("own") == made
        assert await admin.revisions.get_by_status("own", "draft") == made
        assert await admin.revisions.get("own", made.id) == made
        with pytest.raises(NotFound):
            await admin.revisions.get_published("own")
        test = {"op": "test", "path": "/title", "value": "T"}
        patched = await admin.revisions.patch(
            "own", made.id, [test, {"op": "replace", "path": "/content/n", "value": 2}]
        )
        assert patched.content == {"token": "t", "n": 2}
        merged = await admin.revisions.patch("own", made.id, {"title": None})
        assert merged.title is None
        with pytest.raises(Conflict):
            await admin.revisions.patch("own", made.id, [test])
        published = await admin.revisions.update("own", made.id, status="published", version="1.0")
        assert await admin.revisions.get_published("own") == published
        assert await admin.revisions.get_by_version("own", "1.0") == published
        assert await admin.revisions.list("own", "published") == (published,)
        assert (await anybody.revisions.get_live("own", "1.0")).content == {"n": 2}


async def test_status_calls(url: str) -> None:
    async with AsyncClient(url, username="client", password=PASSWORD) as client:
        assert await client.status.ping() > 0
        assert (await client.status.get_version()).version
        assert (await client.status.get_server_time()).request_time_ms is not None


async def test_synchronous_client_is_the_same(url: str) -> None:
    def work() -> list[int]:
        with Client(url, username="producer", password=PASSWORD) as client:
            client.programs.create("final", "The final")
            client.publish("final", "A#b")
            assert client.users.get_me().username == "producer"
            assert client.projects.list() == ()
            return [event.seq for event in client.events.iterate("final")]

    assert await asyncio.to_thread(work) == [1]


async def test_request_of_a_data_source(product: Product, url: str) -> None:
    """The upstream is at an inner address, which nobody has allowed."""
    sources = {"dataSources": [{"id": "a", "type": "api", "url": "http://127.0.0.1/"}]}
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        await client.projects.create("Own", project_id="own")
        async with product.services.database.connection() as connection:
            await connection.execute(
                "INSERT INTO revisions (account, project_id, id, version, status, content, created_by,"
                " updated_by, created_time, updated_time)"
                " VALUES ('demo', 'own', 'r', '1', 'draft', $1, 'x', 'x', now(), now())",
                orjson.dumps(sources).decode(),
            )
        with pytest.raises(ApiError) as refused:
            await client.data_sources.request("own", "1", "a", parameters={"b": 1})
        assert (refused.value.status, refused.value.name) == (403, "forbidden_url")
        with pytest.raises(NotFound):
            await client.data_sources.request("own", "1", "b", method="POST", body={"c": 1})


POLL = {"title": "Who wins?", "options": ["Home", {"label": "Away"}]}


async def _ask(url: str, project_id: str | None = None, **metadata: object) -> str:
    """A program with an event that asks something; the event's id."""
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        if project_id is not None:
            await client.projects.create(project_id, project_id=project_id)
        await client.programs.create("final", "The final", project_id=project_id)
        return (await client.publish("final", "Poll#show", POLL | metadata)).id


@pytest.mark.parametrize("project", [None, "own"])
async def test_answers_are_counted_and_told(url: str, product: Product, project: str | None) -> None:
    context = await _ask(url, project)
    answers = [Answer("whoWins", context, n % 2, f"v{n}") for n in range(5)]
    answers.append(Answer("whoWins", context, (1, 0), "v5", "s1"))
    shown = [Impression("whoWins", context, "v0", f"s{n}") for n in range(2)]
    async with AsyncClient(url) as anybody:
        assert await anybody.responses.add("final", answers, shown, project_id=project) == Counted(8, 0)
        again = [Answer("whoWins", context, 1, "v0")]
        assert await anybody.responses.add("final", again, project_id=project) == Counted(0, 1)
        assert await anybody.responses.add("final", project_id=project) == Counted(0, 0)
        results = await anybody.responses.get_results(
            "whoWins", program_id="final", context_id=context, project_id=project
        )
        assert results == LiveResults("demo", "whoWins", {0: 4, 1: 3}, 7, project, context, True)
        assert (await anybody.responses.get_results("unasked")).results == {}
        with pytest.raises(Unauthenticated):
            await anybody.responses.get_report("final", project_id=project)
    async with AsyncClient(url, username="user", password=PASSWORD) as client:
        (entry,) = await client.responses.get_report("final", project_id=project)
    assert (entry.title, entry.measure_name, entry.context_id, entry.total) == (
        "Who wins?",
        "whoWins",
        context,
        7,
    )
    assert entry.options == (ReportOption(0, 4, "Home"), ReportOption(1, 3, "Away"))
    assert entry.impressions == ReportImpressions(total=2, uniques=1, sessions=2)


async def test_issued_visitors_vote_and_the_report_tells_how(url: str, product: Product) -> None:
    context = await _ask(url, visitors="issued", watched=True)
    async with AsyncClient(url) as anybody:
        visitor = await anybody.responses.get_visitor()
        assert await anybody.responses.get_visitor(visitor) is visitor
        old = replace(visitor, expires=0)
        renewed = await anybody.responses.get_visitor(old)
        assert renewed.expires >= visitor.expires
        assert await anybody.responses.add(
            "final", [Answer("whoWins", context, 1, visitor.visitor_id)]
        ) == Counted(1, 0)
        again = [Answer("whoWins", context, 1, renewed.visitor_id)]
        assert await anybody.responses.add("final", again) == Counted(0, 1), "it is the same visitor"
        with pytest.raises(Unauthenticated):
            await anybody.responses.get_integrity("final")
    await product.services.audience.patterns.write()
    async with AsyncClient(url, username="user", password=PASSWORD) as client:
        (entry,) = await client.responses.get_integrity("final")
    assert (entry.measure_name, entry.context_id, entry.title) == ("whoWins", context, "Who wins?")
    assert (entry.visitors, entry.is_watched, entry.votes) == ("issued", True, 1)
    assert sum(minute.votes for minute in entry.minutes) == 1
    assert (entry.networks, entry.other_votes, entry.in_row) == ((), 1, 0)


async def test_refused_answers_say_why(url: str) -> None:
    context = await _ask(url, closes=1)
    async with AsyncClient(url) as client, AsyncClient(url, account="other") as elsewhere:
        with pytest.raises(Conflict):
            await client.responses.add("final", [Answer("whoWins", context, 0, "v")])
        with pytest.raises(InvalidRequest) as refused:
            await client.responses.add("final", [Answer("whoWins", context, 2, "v")])
        assert refused.value.fields[0].field == "responses[0].measureValue"
        for asked, project in ((client, "own"), (elsewhere, None)):
            with pytest.raises(NotFound):
                await asked.responses.add("final", [Answer("whoWins", context, 0, "v")], project_id=project)


async def test_synchronous_client_answers(url: str) -> None:
    context = await _ask(url)

    def work() -> tuple[Counted, int, int]:
        with Client(url, username="user", password=PASSWORD) as client:
            counted = client.responses.add("final", [Answer("whoWins", context, 0, "v")])
            results = client.responses.get_results("whoWins", program_id="final")
            return counted, results.total, client.responses.get_report("final")[0].total

    assert await asyncio.to_thread(work) == (Counted(1, 0), 1, 1)
