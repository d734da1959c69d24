"""What was purged is not shown again, from whatever cache, and what was not stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.concurrency.shares import Asker
from broker.errors import Unavailable
from broker.image_urls import image_path
from broker.images.account_rules import AccountRules
from broker.images.errors import SourceFailed
from broker.images.geometry import Face, Point
from broker.images.purges import PurgeBook, PurgeFollower, source_of
from broker.storage.database import Database
from broker.storage.image_purges import ALL, MAX_SOURCES, ImagePurges, Purge
from tests.auth.services import open_database
from tests.fetching.upstream import Answer, Seen, Upstream, open_fetcher, open_upstream, reply, send
from tests.images.replica import Replica, open_replica
from tests.images.samples import gradient
from tests.images.stage import KnownFaces, ListedPurges, Stage, open_stage
from tests.images.test_service import Work

SMALL = bytes(gradient(160, 120).pngsave_buffer())
FACE = Face(40, 30, 20, 20, 0.9, tuple(Point(50, 40) for _ in range(68)))
TWO_ACCOUNTS = {"demo": AccountRules(), "other": AccountRules()}


def run(directory: Path, answer: Answer, work: Work, **options: object) -> None:
    async def go() -> None:
        async with (
            open_upstream(answer) as upstream,
            open_stage(directory, open_fetcher(upstream.port), **options) as stage,  # type: ignore[arg-type]
        ):
            await work(stage, upstream)

    asyncio.run(go())


async def purge(stage: Stage, account: str, url: str | None = None) -> None:
    stage.purges.add(account, url)
    await stage.book.read()


def test_a_purged_source_is_fetched_and_made_anew(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for options in ("w=50", "w=100"):
            await stage.service.get(Asker("demo"), options, upstream.url("/a.png"))
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/b.png"))
        assert len(upstream.seen) == 2
        await purge(stage, "demo", upstream.url("/a.png"))
        again = [
            await stage.service.get(Asker("demo"), options, upstream.url("/a.png"))
            for options in ("w=50", "w=100")
        ]
        assert [each.is_hit for each in again] == [False, False]
        assert (await stage.service.get(Asker("demo"), "w=50", upstream.url("/b.png"))).is_hit
        assert len(upstream.seen) == 3
        assert (await stage.service.get(Asker("demo"), "w=50", upstream.url("/a.png"))).is_hit

    run(tmp_path, reply(body=SMALL), work)


def test_what_is_purged_is_asked_for_without_conditions(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 304 if "if-none-match" in seen.headers else 200, SMALL, ETag='"one"')

    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url())
        await purge(stage, "demo", upstream.url())
        assert not (await stage.service.get(Asker("demo"), "w=50", upstream.url())).is_hit
        assert "if-none-match" not in upstream.seen[1].headers

    run(tmp_path, answer, work)


def test_all_of_one_account_is_purged_and_nothing_of_another(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for account in TWO_ACCOUNTS:
            for path in ("/a.png", "/b.png"):
                await stage.service.get(Asker(account), "w=50", upstream.url(path))
        await purge(stage, "demo")
        hits = {
            (account, path): (await stage.service.get(Asker(account), "w=50", upstream.url(path))).is_hit
            for account in TWO_ACCOUNTS
            for path in ("/a.png", "/b.png")
        }
        assert hits == {
            ("demo", "/a.png"): False,
            ("demo", "/b.png"): False,
            ("other", "/a.png"): True,
            ("other", "/b.png"): True,
        }

    run(tmp_path, reply(body=SMALL), work, accounts=TWO_ACCOUNTS)


def test_a_remembered_error_is_purged(tmp_path: Path) -> None:
    statuses = [404, 200]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, statuses.pop(0), SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        for _ in range(2):
            with pytest.raises(SourceFailed):
                await stage.service.get(Asker("demo"), "w=50", upstream.url())
        await purge(stage, "demo", upstream.url())
        assert not (await stage.service.get(Asker("demo"), "w=50", upstream.url())).is_hit

    run(tmp_path, answer, work)


def test_faces_are_looked_for_again_after_a_purge(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for options in ("w=50,h=50,fit=face", "w=100,h=100,fit=face"):
            await stage.service.get(Asker("demo"), options, upstream.url())
        assert len(stage.faces.asked) == 1
        await purge(stage, "demo", upstream.url())
        await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        assert len(stage.faces.asked) == 2

    run(tmp_path, reply(body=SMALL), work, faces=KnownFaces((FACE,)))


def test_what_was_begun_before_a_purge_is_not_served_after_it(tmp_path: Path) -> None:
    held, bodies = asyncio.Event(), [SMALL, bytes(gradient(120, 160).pngsave_buffer())]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = bodies.pop(0)
        if bodies:
            await held.wait()
        await send(writer, 200, body)

    async def work(stage: Stage, upstream: Upstream) -> None:
        before = asyncio.create_task(stage.service.get(Asker("demo"), "w=50", upstream.url()))
        while not upstream.seen:  # noqa: ASYNC110 - it is on the other side of a socket
            await asyncio.sleep(0.01)
        await purge(stage, "demo", upstream.url())
        after = asyncio.create_task(stage.service.get(Asker("demo"), "w=50", upstream.url()))
        held.set()
        first, second = await asyncio.gather(before, after)
        assert first.etag != second.etag
        assert (await stage.service.get(Asker("demo"), "w=50", upstream.url())).etag == second.etag

    run(tmp_path, answer, work)


def test_what_was_begun_before_a_purge_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    """The purge has cleared the disk by the time that it is written."""
    held = asyncio.Event()

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        await send(writer, 200, SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        before = asyncio.create_task(stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url()))
        while not upstream.seen:  # noqa: ASYNC110 - it is on the other side of a socket
            await asyncio.sleep(0.01)
        await purge(stage, "demo", upstream.url())
        await asyncio.to_thread(stage.service.remove_purged)
        held.set()
        await before
        assert files(tmp_path) == {"results": 0, "sources": 0, "faces": 0}
        await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        assert files(tmp_path) == {"results": 1, "sources": 1, "faces": 1}
        assert (await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())).is_hit

    run(tmp_path, answer, work, faces=KnownFaces((FACE,)))


def test_a_node_that_was_away_does_not_show_what_was_purged(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_upstream(reply(body=SMALL)) as upstream:
            url = upstream.url("/a.png")
            async with open_stage(tmp_path, open_fetcher(upstream.port)) as stage:
                await stage.service.get(Asker("demo"), "w=50", url)
            async with open_stage(tmp_path, open_fetcher(upstream.port)) as stage:
                await purge(stage, "demo", url)
                assert not (await stage.service.get(Asker("demo"), "w=50", url)).is_hit
            assert len(upstream.seen) == 2

    asyncio.run(go())


def test_the_room_of_what_is_purged_is_given_up(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for path in ("/a.png", "/b.png"):
            for options in ("w=50", "w=100", "w=50,h=50,fit=face"):
                await stage.service.get(Asker("demo"), options, upstream.url(path))
        follower = PurgeFollower(
            stage.book, tmp_path, stage.service.forget_purged, stage.service.remove_purged
        )
        kept = files(tmp_path)
        stage.purges.add("demo", upstream.url("/a.png"))
        running = asyncio.create_task(follower.run())
        while not (tmp_path / "purged").exists():  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
        running.cancel()
        left = files(tmp_path)
        assert (kept["results"], left["results"]) == (6, 3)
        assert (kept["sources"], left["sources"]) == (2, 1)
        assert (tmp_path / "purged").read_text() == "1"
        assert (await stage.service.get(Asker("demo"), "w=50", upstream.url("/b.png"))).is_hit

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        side = 160 if seen.path.startswith("/a") else 170
        await send(writer, 200, bytes(gradient(side, 120).pngsave_buffer()))

    run(tmp_path, answer, work, faces=KnownFaces((FACE,)))


def test_the_room_is_given_up_where_a_request_has_read_the_purge(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/a.png"))
        stage.purges.add("demo", upstream.url("/a.png"))
        await stage.service.know_purges(1)
        follower = PurgeFollower(
            stage.book, tmp_path, stage.service.forget_purged, stage.service.remove_purged
        )
        running = asyncio.create_task(follower.run())
        while not (tmp_path / "purged").exists():  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
        running.cancel()
        assert files(tmp_path)["results"] == 0

    run(tmp_path, reply(body=SMALL), work)


def files(directory: Path) -> dict[str, int]:
    """Cache → its entries."""
    return {name: len(list((directory / name).glob("*/*"))) for name in ("results", "sources", "faces")}


def test_nothing_is_shown_before_the_purges_are_read(tmp_path: Path) -> None:
    book = PurgeBook(ListedPurges())
    with pytest.raises(Unavailable):
        book.origin("demo", "http://a.test/")
    asyncio.run(book.read())
    assert book.origin("demo", "http://a.test/").source == source_of("http://a.test/")


# -- in PostgreSQL


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


@pytest.mark.anyio
@pytest.mark.postgres
async def test_purges_are_read_in_the_order_of_their_numbers(database: Database) -> None:
    stored, one, two = (
        ImagePurges(database),
        PurgeBook(ImagePurges(database)),
        PurgeBook(ImagePurges(database)),
    )
    await one.read()
    before = one.origin("demo", "http://a.test/")
    assert not one.is_gone(before)
    await stored.add("demo", source_of("http://a.test/"))
    await one.read()
    assert one.is_gone(before)
    assert not one.is_gone(one.origin("demo", "http://a.test/"))
    await two.read()  # a replica that starts now
    assert two.is_gone(before)
    assert two.number == one.number


@pytest.mark.anyio
@pytest.mark.postgres
async def test_who_is_told_of_a_purge_reads_it_once(database: Database) -> None:
    stored = CountedPurges(database)
    book = PurgeBook(stored)
    assert await stored.get_head() == 0
    await book.catch_up(0)
    before = book.origin("demo", "http://a.test/")
    await stored.add("demo", source_of("http://a.test/"))
    told = await stored.get_head()
    await asyncio.gather(*(book.catch_up(told) for _ in range(5)))
    assert book.is_gone(before)
    assert (book.number, book.last) == (told, told)
    assert stored.reads == 2


class CountedPurges(ImagePurges):
    """The repository, which counts how often it is read."""

    reads = 0

    async def list_after(self, number: int) -> tuple[int, list[Purge]]:
        self.reads += 1
        return await super().list_after(number)


@pytest.mark.anyio
@pytest.mark.postgres
async def test_too_many_purges_of_an_account_become_one_of_all(database: Database) -> None:
    stored, book = ImagePurges(database), PurgeBook(ImagePurges(database))
    await book.read()
    untouched = book.origin("demo", "http://other.test/")
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO image_purges SELECT 'demo', n::text, n, now() FROM generate_series(1, $1) n",
            MAX_SOURCES,
        )
    await stored.add("demo", source_of("http://a.test/"))
    _, purges = await stored.list_after(-1)
    assert [purge.source for purge in purges] == [ALL]
    await book.read()
    assert book.is_gone(untouched)


@pytest.mark.anyio
@pytest.mark.postgres
async def test_a_purge_reaches_the_memory_of_every_process(
    database: Database, migrated_dsn: str, tmp_path: Path
) -> None:
    bodies = [SMALL]

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, bodies[-1])

    async with (
        open_upstream(answer) as upstream,
        open_replica(migrated_dsn, tmp_path, upstream.port) as one,
        open_replica(migrated_dsn, tmp_path, upstream.port) as two,
        asyncio.timeout(60),
    ):
        url = upstream.url("/a.png", host="127.0.0.1")
        path = image_path("demo", "w=50", url)

        async def get(replica: Replica) -> tuple[str, str]:
            headers = (await replica.get(path)).headers
            return headers["etag"], headers["x-cache"]

        (etag, cache), found = await get(one), await get(two)
        assert (cache, found) == ("MISS", (etag, "HIT"))
        for file in (tmp_path / "images" / "results").glob("*/*"):
            file.unlink()  # so that both have it in memory alone
        assert [await get(one), await get(two)] == [(etag, "HIT")] * 2
        bodies.append(bytes(gradient(120, 160).pngsave_buffer()))
        await ImagePurges(database).add("demo", source_of(url))
        for replica in (one, two):
            while (now := await get(replica))[0] == etag:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            assert await get(replica) == (now[0], "HIT")
        assert await get(one) == await get(two)
        assert len(upstream.seen) == 2


@pytest.mark.anyio
@pytest.mark.postgres
async def test_numbers_rise_when_what_was_purged_is_forgotten(database: Database) -> None:
    stored = ImagePurges(database)
    await stored.add("demo", "a")
    async with database.connection() as connection:
        await connection.execute("UPDATE image_purges SET time = now() - interval '8 days'")
        await connection.execute("UPDATE image_purge_head SET number = number + 1000000000")
    first, _ = await stored.list_after(-1)
    await stored.add("demo", "b")
    second, purges = await stored.list_after(-1)
    assert second == first + 1
    assert [purge.source for purge in purges] == ["b"]
