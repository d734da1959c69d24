"""What is fetched, made, kept and remembered, with a real upstream and real processes."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import copy
from pathlib import Path

import pytest
import pyvips

from broker.concurrency.shares import Asker
from broker.errors import BrokerError, NotFound, SlowDown, Unavailable
from broker.fetching.errors import ForbiddenUrl
from broker.fetching.fetcher import Fetcher
from broker.image_urls import sign_url
from broker.images.account_rules import AccountRules
from broker.images.errors import (
    DecoderEnded,
    InvalidImageUrl,
    InvalidOptions,
    SourceFailed,
    SourceTimeout,
    TooCostly,
    UnprocessableImage,
)
from broker.images.geometry import Face, Point, Size
from broker.images.host_rules import HostRules
from broker.images.service import ServedImage, ServiceConfig
from broker.images.signatures import Signature
from broker.images.sources import SourceConfig
from broker.images.workers import WorkerConfig
from broker.limits.rate_limits import Rate
from tests.fetching.upstream import Answer, Seen, Upstream, open_fetcher, open_upstream, reply, send
from tests.images.decoder_processes import decoders_of
from tests.images.refused_urls import FORBIDDEN, INNER, INVALID
from tests.images.samples import animation, gradient
from tests.images.stage import KnownFaces, Stage, open_stage

SMALL = bytes(gradient(160, 120).pngsave_buffer())
OTHER = bytes(gradient(120, 160).pngsave_buffer())
FACE = Face(40, 30, 20, 20, 0.9, tuple(Point(50, 40) for _ in range(68)))

Work = Callable[[Stage, Upstream], Awaitable[None]]


def run(directory: Path, answer: Answer, work: Work, **options: object) -> None:
    """Do `work` with a service whose upstream answers `answer`."""

    async def go() -> None:
        async with (
            open_upstream(answer) as upstream,
            open_stage(directory, open_fetcher(upstream.port), **options) as stage,  # type: ignore[arg-type]
        ):
            await work(stage, upstream)

    asyncio.run(go())


async def fail(stage: Stage, options: str, url: str, account: str = "demo") -> BrokerError:
    try:
        await stage.service.get(Asker(account), options, url)
    except BrokerError as error:
        return copy(error)  # without what was at hand when it was raised
    raise AssertionError("it was served")


def size_of(served: ServedImage) -> tuple[int, int]:
    image = pyvips.Image.new_from_buffer(served.body, "")
    return image.width, image.height


def test_a_thousand_equal_requests_are_one_fetch_and_one_transform(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url("/a.png")
        asked = [stage.service.get(Asker("demo"), "w=50,f=webp", url) for _ in range(1_000)]
        served = await asyncio.gather(*asked)
        assert len({each.etag for each in served}) == 1
        assert served[0].type == "image/webp"
        assert (len(upstream.seen), stage.workers.tasks) == (1, ["render"])

    run(tmp_path, reply(body=SMALL), work)


def test_equal_options_in_other_words_are_one_image(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        first = await stage.service.get(Asker("demo"), "w=50,h=50,fit=fill", upstream.url())
        second = await stage.service.get(Asker("demo"), "fit=fill:center,h=50,w=50", upstream.url())
        assert (first.is_hit, second.is_hit, first.etag == second.etag) == (False, True, True)
        assert stage.workers.tasks == ["render"]

    run(tmp_path, reply(body=SMALL), work)


def test_other_options_fetch_nothing_anew(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        small, tall = await asyncio.gather(
            stage.service.get(Asker("demo"), "w=50", upstream.url()),
            stage.service.get(Asker("demo"), "h=100", upstream.url()),
        )
        assert (size_of(small)[0], size_of(tall)[1]) == (50, 100)
        assert len(upstream.seen) == 1

    run(tmp_path, reply(body=SMALL), work)


def test_without_a_disk_all_is_made_anew_but_what_is_in_memory(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        first = await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        again = await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        other = await stage.service.get(Asker("demo"), "w=100,h=100,fit=face", upstream.url())
        assert (first.is_hit, again.is_hit, other.is_hit) == (False, True, False)
        assert (size_of(other)[0], len(upstream.seen), len(stage.faces.asked)) == (100, 2, 2)

    run(tmp_path, reply(body=SMALL), work, disk_bytes=0, faces=KnownFaces((FACE,)))
    assert not [path for path in tmp_path.glob("*/*/*") if path.is_file()]


def test_another_account_shares_nothing(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url())
        assert not (await stage.service.get(Asker("other"), "w=50", upstream.url())).is_hit
        assert len(upstream.seen) == 2
        assert isinstance(await fail(stage, "w=50", upstream.url(), "nobody"), NotFound)

    run(tmp_path, reply(body=SMALL), work, accounts={"demo": AccountRules(), "other": AccountRules()})


def test_an_old_source_is_asked_for_conditionally_and_its_results_stay(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        known = seen.headers.get("if-none-match")
        if known == '"one"':
            await send(writer, 304)
        else:
            await send(writer, 200, SMALL, ETag='"one"', Last_Modified="Sat, 21 Nov 2026 10:00:00 GMT")

    async def work(stage: Stage, upstream: Upstream) -> None:
        first = await stage.service.get(Asker("demo"), "w=50", upstream.url())
        stage.clock.later_s = 90_000  # over a day: the result is old, and its source too
        second = await stage.service.get(Asker("demo"), "w=50", upstream.url())
        assert (second.is_hit, second.etag) == (True, first.etag)
        assert upstream.seen[1].headers["if-modified-since"] == "Sat, 21 Nov 2026 10:00:00 GMT"
        assert (len(upstream.seen), stage.workers.tasks) == (2, ["render"])
        assert (await stage.service.get(Asker("demo"), "w=50", upstream.url())).is_hit
        assert len(upstream.seen) == 2

    run(tmp_path, answer, work)


def test_a_changed_source_makes_a_new_image(tmp_path: Path) -> None:
    bodies = [SMALL, OTHER]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, bodies.pop(0))

    async def work(stage: Stage, upstream: Upstream) -> None:
        first = await stage.service.get(Asker("demo"), "w=100", upstream.url())
        stage.clock.later_s = 90_000
        second = await stage.service.get(Asker("demo"), "w=100", upstream.url())
        assert not second.is_hit
        assert size_of(first) != size_of(second)

    run(tmp_path, answer, work)


def test_an_old_image_is_shown_while_its_server_fails_and_the_server_is_left_in_peace(
    tmp_path: Path,
) -> None:
    statuses = [200, 503]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, statuses.pop(0), SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url())
        stage.clock.later_s = 4_000  # the source is old
        await stage.service.get(Asker("demo"), "w=100", upstream.url())
        await stage.service.get(Asker("demo"), "h=50", upstream.url())
        assert len(upstream.seen) == 2
        # What was made meanwhile is looked at again when the server may be asked again.
        statuses.append(200)
        stage.clock.later_s += 301
        await stage.service.get(Asker("demo"), "w=100", upstream.url())
        assert len(upstream.seen) == 3

    run(tmp_path, answer, work)


def test_a_server_that_fails_for_too_long_takes_its_images_along(tmp_path: Path) -> None:
    statuses = [200, 503]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, statuses.pop(0), SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url())
        stage.clock.later_s = 200_000
        assert isinstance(await fail(stage, "w=50", upstream.url()), SourceFailed)

    run(tmp_path, answer, work)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (reply(404, b"no"), SourceFailed, "answers 404"),
        (reply(500, b"no"), SourceFailed, "answers 500"),
        (reply(200, b"<svg/>", Content_Type="image/png"), UnprocessableImage, "not a JPEG, PNG"),
        (reply(200, SMALL[:-60]), UnprocessableImage, "damaged or incomplete"),
        (reply(200, b""), UnprocessableImage, "not a JPEG, PNG"),
        (reply(302, Location="http://10.0.0.1/a.png"), ForbiddenUrl, "port must be one of"),
        (reply(302, Location="ftp://upstream.test/a.png"), ForbiddenUrl, "not allowed"),
        (reply(302, Location="http://u:p@upstream.test/a.png"), ForbiddenUrl, "not allowed"),
        (reply(302, Location="/again"), SourceFailed, "more than 5 times"),
    ],
)
def test_an_error_is_told_and_kept_for_five_minutes(
    tmp_path: Path, answer: Answer, kind: type[BrokerError], message: str
) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url()
        error = await fail(stage, "w=50", url)
        assert isinstance(error, kind)
        assert message in error.message
        asked, tasks = len(upstream.seen), len(stage.workers.tasks)
        stage.clock.later_s = 290
        again = await fail(stage, "w=50", url)
        assert (type(again), again.message) == (type(error), error.message)
        assert (len(upstream.seen), len(stage.workers.tasks)) == (asked, tasks)
        stage.clock.later_s = 310
        await fail(stage, "w=50", url)
        assert len(upstream.seen) > asked or len(stage.workers.tasks) > tasks or kind is ForbiddenUrl

    run(tmp_path, answer, work)


def damage(directory: Path) -> None:
    """Change a byte in the middle of each file, as a failing disk does."""
    for path in directory.glob("*/*"):
        body = bytearray(path.read_bytes())
        body[-len(body) // 3] ^= 0xFF
        path.write_bytes(body)


def test_what_a_disk_has_damaged_is_made_again(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url()
        first = await stage.service.get(Asker("demo"), "w=50", url)
        damage(tmp_path / "sources")
        other_size = await stage.service.get(Asker("demo"), "w=100", url)
        assert size_of(other_size) == (100, 75)
        assert len(upstream.seen) == 2
        damage(tmp_path / "results")
        stage.service._memory.clear()
        again = await stage.service.get(Asker("demo"), "w=50", url)
        assert (again.body, again.is_hit) == (first.body, False)
        assert len(upstream.seen) == 2

    run(tmp_path, reply(200, SMALL), work)


def test_a_kept_source_that_is_no_image_is_fetched_once_more(tmp_path: Path) -> None:
    bodies = [SMALL[:-60], SMALL]

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, bodies.pop(0))

    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url()
        assert isinstance(await fail(stage, "w=50", url), UnprocessableImage)
        served = await stage.service.get(Asker("demo"), "w=100", url)
        assert size_of(served) == (100, 75)
        assert isinstance(await fail(stage, "w=50", url), UnprocessableImage)  # as is remembered
        assert len(upstream.seen) == 2

    run(tmp_path, answer, work)


def test_many_sizes_of_what_is_no_image_are_two_fetches(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for width in range(100, 1_100, 100):
            error = await fail(stage, f"w={width}", upstream.url())
            assert isinstance(error, UnprocessableImage)
        assert len(upstream.seen) == 2

    run(tmp_path, reply(200, SMALL[:-60]), work)


def test_a_slow_server_is_a_timeout_over_all_hops(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.25)
        await send(writer, 302, Location="/next")

    async def work(stage: Stage, upstream: Upstream) -> None:
        assert isinstance(await fail(stage, "w=50", upstream.url()), SourceTimeout)

    run(tmp_path, answer, work, sources=SourceConfig(total_s=0.5))


def test_a_source_over_the_limit_is_refused_as_it_arrives(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\n\r\n")
        for _ in range(1_000):
            writer.write(bytes(10_000))
            await writer.drain()

    async def work(stage: Stage, upstream: Upstream) -> None:
        error = await fail(stage, "w=50", upstream.url())
        assert isinstance(error, SourceFailed)
        assert "over 100000 bytes" in error.message

    run(tmp_path, answer, work, sources=SourceConfig(max_bytes=100_000))


def test_what_does_not_fit_into_memory_is_refused_and_not_remembered(tmp_path: Path) -> None:
    is_open = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 X\r\nContent-Length: {len(SMALL)}\r\n\r\n".encode())
        if seen.path == "/slow":
            writer.write(SMALL[:-1])
            await writer.drain()
            await is_open.wait()
            writer.write(SMALL[-1:])
        else:
            writer.write(SMALL)
        await writer.drain()

    async def work(stage: Stage, upstream: Upstream) -> None:
        whole = stage.sources.memory.free
        slow = asyncio.create_task(stage.service.get(Asker("demo"), "w=50", upstream.url("/slow")))
        while stage.sources.memory.free > whole - len(SMALL) // 2:  # noqa: ASYNC110  # bytes on their way
            await asyncio.sleep(0.01)
        assert isinstance(await fail(stage, "w=50", upstream.url("/other")), Unavailable)
        is_open.set()
        await slow
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/other"))

    # One account may hold half of it.
    run(tmp_path, answer, work, sources=SourceConfig(memory_bytes=2 * len(SMALL), room_s=0.2))


def test_sources_that_do_not_fit_into_memory_at_once_are_fetched_one_after_the_other(tmp_path: Path) -> None:
    most = [0]
    memory_bytes = 8 * len(SMALL)

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 X\r\nContent-Length: {len(SMALL)}\r\n\r\n".encode())
        writer.write(SMALL[:-1])
        await writer.drain()
        await asyncio.sleep(0.05)  # so that all of them have come at the same time
        writer.write(SMALL[-1:])
        await writer.drain()

    async def work(stage: Stage, upstream: Upstream) -> None:
        async def watch() -> None:
            while True:
                most[0] = max(most[0], memory_bytes - stage.sources.memory.free)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        asker = Asker("demo", "192.0.2.1")
        gets = [stage.service.get(asker, "w=50", upstream.url(f"/{at}")) for at in range(16)]
        served = await asyncio.gather(*gets)
        watching.cancel()
        assert [one for one in served if size_of(one)[0] != 50] == []
        paths = Counter(seen.path for seen in upstream.seen)
        assert len(paths) == 16
        assert max(paths.values()) == 2, "some had to be fetched again, and none more than once"

    run(tmp_path, answer, work, sources=SourceConfig(memory_bytes=memory_bytes))
    # One address may hold half of what is free, before what it holds last.
    assert len(SMALL) < most[0] <= memory_bytes / 2


def test_who_waits_for_room_keeps_no_other_account_waiting_and_leaves_nothing_held(tmp_path: Path) -> None:
    is_open = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 X\r\nContent-Length: {len(SMALL)}\r\n\r\n".encode())
        writer.write(SMALL[:-1])
        await writer.drain()
        if seen.path.startswith("/slow"):
            await is_open.wait()
        writer.write(SMALL[-1:])
        await writer.drain()

    async def work(stage: Stage, upstream: Upstream) -> None:
        whole, greedy = stage.sources.memory.free, Asker("greedy", "192.0.2.1")
        gets = [stage.service.get(greedy, "w=50", upstream.url(f"/slow/{at}")) for at in range(8)]
        waiting = [asyncio.create_task(get) for get in gets]
        while len(upstream.seen) < 8 or stage.sources.memory.free > whole - len(SMALL):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await stage.service.get(Asker("demo", "192.0.2.2"), "w=50", upstream.url("/quick"))
        assert [one for one in waiting if one.done()] == []
        waiting[-1].cancel()
        is_open.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(20):
            while stage.sources.memory.free != whole:  # noqa: ASYNC110  # a thread's end
                await asyncio.sleep(0.01)

    accounts = {"demo": AccountRules(), "greedy": AccountRules()}
    run(tmp_path, answer, work, sources=SourceConfig(memory_bytes=8 * len(SMALL)), accounts=accounts)


def test_no_bytes_are_held_when_nothing_runs(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, SMALL[:-60] if seen.path == "/broken" else SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        whole = stage.sources.memory.free
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/whole"))
        await stage.service.get(Asker("demo"), "w=100", upstream.url("/whole"))
        await fail(stage, "w=50", upstream.url("/broken"))
        await fail(stage, "w=50", upstream.url("/broken"))
        # The thread that raised an error holds it for a moment longer; what is remembered, for good.
        async with asyncio.timeout(20):
            while stage.sources.memory.free != whole:  # noqa: ASYNC110  # a thread's end
                await asyncio.sleep(0.01)

    gc.disable()
    try:
        run(tmp_path, answer, work)
    finally:
        gc.enable()


def test_a_slow_host_takes_only_its_own_places(tmp_path: Path) -> None:
    is_open = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.headers["host"].startswith("slow"):
            await is_open.wait()
        await send(writer, 200, SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        slow = [
            asyncio.create_task(stage.service.get(Asker("demo"), "w=50", upstream.url(f"/{at}", "slow.test")))
            for at in range(2)
        ]
        while len(upstream.seen) < 2:  # noqa: ASYNC110  # requests on their way
            await asyncio.sleep(0.01)
        third = asyncio.create_task(stage.service.get(Asker("demo"), "w=50", upstream.url("/3", "slow.test")))
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/", "quick.test"))
        assert len(upstream.seen) == 3
        is_open.set()
        await asyncio.gather(*slow, third)

    run(tmp_path, answer, work, sources=SourceConfig(fetches_per_host=2))


def test_an_account_that_fetches_all_it_may_leaves_places_for_others(tmp_path: Path) -> None:
    is_open = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.path.startswith("/slow"):
            await is_open.wait()
        await send(writer, 200, SMALL)

    async def work(stage: Stage, upstream: Upstream) -> None:
        greedy = [
            asyncio.create_task(stage.service.get(Asker("greedy"), "w=50", upstream.url(f"/slow/{at}")))
            for at in range(20)
        ]
        while len(upstream.seen) < 4:  # noqa: ASYNC110  # requests on their way
            await asyncio.sleep(0.01)
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/quick"))
        assert len(upstream.seen) == 5
        is_open.set()
        await asyncio.gather(*greedy)

    accounts = {"demo": AccountRules(), "greedy": AccountRules()}
    run(tmp_path, answer, work, sources=SourceConfig(fetches=8), accounts=accounts)


def test_images_that_have_to_be_made_are_counted_for_account_and_address(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        async def get(address: str, path: str) -> ServedImage:
            return await stage.service.get(Asker("demo", address), "w=50", upstream.url(path))

        stage.clock.stop()  # however long the images take, nobody gains by it
        for path in ("/1", "/2", "/1", "/2"):  # the second time they are there
            await get("192.0.2.1", path)
        with pytest.raises(SlowDown):
            await get("192.0.2.1", "/3")
        await get("192.0.2.2", "/3")
        await get("192.0.2.1", "/3")
        with pytest.raises(SlowDown):
            await get("192.0.2.3", "/4")
        assert len(upstream.seen) == 3
        stage.clock.later_s = 10
        await get("192.0.2.3", "/4")

    rates = {"per_account": Rate(0.5, 3), "per_address": Rate(0.2, 2)}
    run(tmp_path, reply(body=SMALL), work, **rates)


@pytest.mark.postgres
def test_images_beyond_the_quota_of_the_account_are_not_made(tmp_path: Path, migrated_dsn: str) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        stage.clock.stop()
        for path in ("/1", "/2", "/1"):  # one that is there is not made again
            await stage.service.get(Asker("demo"), "w=50", upstream.url(path))
        error = await fail(stage, "w=50", upstream.url("/3"))
        assert isinstance(error, SlowDown)
        assert error.message == "the account has reached its quota of 2 images made a minute"
        assert error.retry_after_s == 30
        await stage.service.get(Asker("other"), "w=50", upstream.url("/3"))
        stage.clock.later_s = 30
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/3"))

    accounts = {"demo": AccountRules(quota=2), "other": AccountRules()}
    run(tmp_path, reply(body=SMALL), work, accounts=accounts, quotas_dsn=migrated_dsn)


def test_who_joins_an_image_is_not_refused_for_who_began_it(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url("/2")
        await stage.service.get(Asker("demo", "192.0.2.1"), "w=50", upstream.url("/1"))
        asked = [stage.service.get(Asker("demo", f"192.0.2.{at}"), "w=50", url) for at in (1, 1, 2, 3)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [SlowDown, SlowDown, ServedImage, ServedImage]
        assert len(upstream.seen) == 2

    run(tmp_path, reply(body=SMALL), work, per_address=Rate(0.001, 1))


def test_an_image_that_ends_its_process_is_not_tried_twice(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        assert isinstance(await fail(stage, "w=50", upstream.url()), DecoderEnded)
        # Neither with other options, nor from another place.
        assert isinstance(await fail(stage, "w=100", upstream.url()), DecoderEnded)
        assert isinstance(await fail(stage, "f=json", upstream.url("/copy")), DecoderEnded)
        assert (stage.workers.tasks, stage.workers.started) == (["render"], 2)
        stage.clock.later_s = 301
        assert isinstance(await fail(stage, "w=100", upstream.url()), DecoderEnded)
        assert (stage.workers.tasks, stage.workers.started) == (["render", "render"], 4)

    # So little memory that the process dies before it can say why.
    run(tmp_path, reply(body=SMALL), work, workers=WorkerConfig(processes=1, memory_bytes=4_096))


def test_an_image_that_ends_its_process_is_not_tried_for_those_who_waited(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        asked = [fail(stage, f"w={width}", upstream.url(f"/{width}")) for width in (100, 200, 300, 400)]
        assert [type(error) for error in await asyncio.gather(*asked)] == [DecoderEnded] * 4
        assert (stage.workers.started, stage.service.counts.crashes) == (2, 1)

    run(tmp_path, reply(body=SMALL), work, workers=WorkerConfig(processes=1, memory_bytes=4_096))


def test_options_that_cost_too_much_take_no_image_from_others(tmp_path: Path) -> None:
    costly = "w=2000,h=2000,fit=scale,f=gif"

    async def work(stage: Stage, upstream: Upstream) -> None:
        for path, started in (("", 1), ("", 1), ("/copy", 1)):
            assert isinstance(await fail(stage, costly, upstream.url(path)), TooCostly)
            assert stage.workers.started == started
        for account in ("demo", "other"):
            assert not (await stage.service.get(Asker(account), "w=50", upstream.url())).is_hit
        assert isinstance(await fail(stage, costly, upstream.url(), "other"), TooCostly)
        assert stage.workers.started == 2

    accounts = {"demo": AccountRules(), "other": AccountRules()}
    run(tmp_path, reply(body=SMALL), work, accounts=accounts, workers=WorkerConfig(processes=1, job_s=0.5))


def test_an_image_that_a_busy_machine_did_not_make_is_tried_again(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for _ in range(2):
            assert type(await fail(stage, "w=50", upstream.url())) is Unavailable
        assert stage.workers.tasks == ["render", "render"]
        assert (stage.service.counts.crashes, stage.service.counts.errors) == (0, 0)

    # The time is over before the loop can hear of an answer, however fast that is.
    run(tmp_path, reply(body=SMALL), work, workers=WorkerConfig(processes=1, wall_s=0.0))


def test_a_decoder_that_hangs_ends_with_the_request_and_is_not_the_images_fault(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/a"))
        (process,) = decoders_of(os.getpid())
        process.suspend()
        assert type(await fail(stage, "w=50", upstream.url("/b"))) is Unavailable
        assert process not in decoders_of(os.getpid())
        assert not (await stage.service.get(Asker("demo"), "w=50", upstream.url("/b"))).is_hit
        assert (stage.service.counts.crashes, stage.service.counts.errors) == (0, 0)

    run(tmp_path, reply(body=SMALL), work, config=ServiceConfig(timeout_s=5))


def test_processes_share_what_is_kept(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            open_upstream(reply(body=SMALL)) as upstream,
            open_stage(tmp_path, open_fetcher(upstream.port)) as one,
            open_stage(tmp_path, open_fetcher(upstream.port)) as other,
        ):
            made = await asyncio.gather(
                *(stage.service.get(Asker("demo"), "w=50", upstream.url()) for stage in (one, other))
            )
            assert sorted(each.is_hit for each in made) == [False, True]
            assert len(one.workers.tasks + other.workers.tasks) == 1
            await asyncio.gather(
                one.service.get(Asker("demo"), "w=100", upstream.url("/b")),
                other.service.get(Asker("demo"), "h=100", upstream.url("/b")),
            )
            assert [seen.path for seen in upstream.seen] == ["/", "/b"]

    asyncio.run(go())


@pytest.mark.parametrize(("behind_s", "fetches"), [(0.3, 1), (60, 2)])
def test_clocks_of_processes_may_differ_a_little(tmp_path: Path, behind_s: float, fetches: int) -> None:
    async def go() -> None:
        async with (
            open_upstream(reply(body=SMALL)) as upstream,
            open_stage(tmp_path, open_fetcher(upstream.port)) as one,
            open_stage(tmp_path, open_fetcher(upstream.port)) as other,
        ):
            for stage in (one, other):
                stage.clock.stop()
            other.clock.later_s = one.clock.now_ms() / 1_000 - other.clock.now_ms() / 1_000 - behind_s
            await one.service.get(Asker("demo"), "w=50", upstream.url())
            for options in ("w=50", "w=100"):
                await other.service.get(Asker("demo"), options, upstream.url())
            assert len(upstream.seen) == fetches

    asyncio.run(go())


def test_a_crop_by_face_looks_once_for_the_faces_of_a_source(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await asyncio.gather(
            stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url()),
            stage.service.get(Asker("demo"), "w=100,h=50,fit=face-and-shoulders", upstream.url()),
        )
        await stage.service.get(Asker("demo"), "w=100,h=100,fit=face,padding=3", upstream.url())
        assert len(stage.faces.asked) == 1
        assert stage.service.counts.detections == 1
        assert stage.service.counts.faces_missing == 0

    run(tmp_path, reply(body=SMALL), work, faces=KnownFaces((FACE,)))


def test_a_crop_by_face_decodes_its_source_once(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        for padding in (2, 3):  # first with the search for faces, then without
            await stage.service.get(Asker("demo"), f"w=50,h=50,fit=face,padding={padding}", upstream.url())
        await stage.service.get(Asker("demo"), "w=50,h=50,fit=fill", upstream.url())
        assert stage.workers.tasks == ["preview", "render", "render", "render"]
        assert stage.workers.had_kept == [False, True, False, False]

    run(tmp_path, reply(body=SMALL), work, faces=KnownFaces((FACE,)))


def test_a_crop_by_attention_decodes_its_source_once(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        assert stage.workers.had_kept == [False, True]

    run(tmp_path, reply(body=SMALL), work)


class MetFaces(KnownFaces):
    """Faces that are found once something else has happened."""

    def __init__(self) -> None:
        super().__init__((FACE,))
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def find(self, size: Size, pixels: bytes) -> tuple[Face, ...]:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().find(size, pixels)


def test_while_faces_are_looked_for_the_decoder_works_for_others(tmp_path: Path) -> None:
    faces = MetFaces()

    async def work(stage: Stage, upstream: Upstream) -> None:
        crop = asyncio.create_task(stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url()))
        await faces.is_asked.wait()
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/other"))
        assert not crop.done()
        faces.may_answer.set()
        await crop
        assert stage.workers.tasks == ["preview", "render", "render"]
        assert stage.workers.had_kept == [False, False, True]

    run(tmp_path, reply(body=SMALL), work, faces=faces)


def test_a_decoder_that_ends_while_faces_are_looked_for_is_no_fault_of_its_image(tmp_path: Path) -> None:
    faces = MetFaces()

    async def work(stage: Stage, upstream: Upstream) -> None:
        crop = asyncio.create_task(stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url()))
        await faces.is_asked.wait()
        for process in decoders_of(os.getpid()):
            process.kill()
            process.wait(30)
        faces.may_answer.set()
        assert size_of(await crop) == (50, 50)
        assert stage.service.counts.crashes == 0

    run(tmp_path, reply(body=SMALL), work, faces=faces)


def test_without_a_detector_a_crop_goes_by_attention_and_is_counted(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        served = await stage.service.get(Asker("demo"), "w=100,h=50,fit=face", upstream.url())
        assert size_of(served) == (100, 50)
        assert stage.service.counts.faces_missing == 1

    run(tmp_path, reply(body=SMALL), work)


async def distinct_images(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Another image at each path that is a number."""
    width = 160 + int(seen.path.removeprefix("/"))
    await send(writer, 200, bytes(gradient(width, 120).pngsave_buffer()))


def test_only_so_many_searches_hold_a_preview_and_the_others_wait(tmp_path: Path) -> None:
    faces = MetFaces()

    async def work(stage: Stage, upstream: Upstream) -> None:
        async def crop(at: int) -> ServedImage:
            return await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url(f"/{at}"))

        crops = [asyncio.create_task(crop(at)) for at in range(9)]
        while len(upstream.seen) < len(crops):  # noqa: ASYNC110  # requests on their way
            await asyncio.sleep(0.01)
        await stage.service.get(Asker("demo"), "w=50", upstream.url("/9"))  # behind all that might run
        assert stage.workers.tasks.count("preview") == 2
        faces.may_answer.set()
        await asyncio.gather(*crops)
        assert len(faces.asked) == 9
        assert stage.service.counts.faces_missing == 0

    run(tmp_path, distinct_images, work, faces=faces, config=ServiceConfig(searches=2))


def test_who_waits_too_long_for_a_search_gets_a_crop_by_attention(tmp_path: Path) -> None:
    faces = MetFaces()

    async def work(stage: Stage, upstream: Upstream) -> None:
        found = asyncio.create_task(
            stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url("/1"))
        )
        await faces.is_asked.wait()
        served = await stage.service.get(Asker("demo"), "w=100,h=50,fit=face", upstream.url("/2"))
        assert size_of(served) == (100, 50)
        faces.may_answer.set()
        await found
        assert stage.workers.tasks == ["preview", "render", "render"]
        assert (stage.service.counts.detections, stage.service.counts.faces_missing) == (2, 1)

    run(tmp_path, distinct_images, work, faces=faces, config=ServiceConfig(searches=1, search_wait_s=0.2))


def test_faces_of_an_animation_are_not_looked_for(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        served = await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        assert served.type == "image/gif"
        assert stage.faces.asked == []

    run(tmp_path, reply(body=bytes(animation().gifsave_buffer())), work, faces=KnownFaces((FACE,)))


def test_a_crop_made_without_a_detector_is_made_anew_once_there_is_one(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())
        stage.faces.faces = (FACE,)
        stage.clock.later_s = 301
        assert not (await stage.service.get(Asker("demo"), "w=50,h=50,fit=face", upstream.url())).is_hit
        assert stage.service.counts.detections == 2

    run(tmp_path, reply(body=SMALL), work)


def test_an_image_is_described(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        served = await stage.service.get(Asker("demo"), "f=json", upstream.url())
        assert served.type == "application/json"
        assert b'"width":160' in served.body
        assert b'"landmarks":[[50.0,40.0]' in served.body

    run(tmp_path, reply(body=SMALL), work, faces=KnownFaces((FACE,)))


def test_only_hosts_of_the_account_are_asked_and_led_to(tmp_path: Path) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.path == "/away":
            await send(writer, 302, Location=f"http://evil.test:{port}/")
        else:
            await send(writer, 200, SMALL)

    port = 0

    async def work(stage: Stage, upstream: Upstream) -> None:
        nonlocal port
        port = upstream.port
        await stage.service.get(Asker("demo"), "w=50", upstream.url(host="upstream.test"))
        await stage.service.get(Asker("demo"), "w=50", upstream.url(host="a.cdn.test"))
        for host, path in (("cdn.test", "/"), ("notupstream.test", "/"), ("upstream.test", "/away")):
            error = await fail(stage, "w=50", upstream.url(path, host))
            assert isinstance(error, ForbiddenUrl)
            assert error.message == "the account does not allow images from this host"

    rules = AccountRules(HostRules.of(["upstream.test", "*.cdn.test"]))
    run(tmp_path, answer, work, accounts={"demo": rules})


def test_an_account_has_presets(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        assert size_of(await stage.service.get(Asker("demo"), "preset=card", upstream.url())) == (50, 50)
        assert isinstance(await fail(stage, "preset=other", upstream.url()), InvalidOptions)

    rules = AccountRules(presets={"card": "w=50,h=50,fit=fill"})
    run(tmp_path, reply(body=SMALL), work, accounts={"demo": rules})


def test_new_rules_count_for_what_was_asked_for_before(tmp_path: Path) -> None:
    accounts = {"demo": AccountRules(presets={"card": "w=50,h=50,fit=fill"})}

    async def work(stage: Stage, upstream: Upstream) -> None:
        async def get() -> tuple[int, int]:
            return size_of(await stage.service.get(Asker("demo"), "preset=card", upstream.url()))

        assert [await get(), await get()] == [(50, 50), (50, 50)]
        accounts["demo"] = AccountRules(presets={"card": "w=100,h=50,fit=fill"})
        assert await get() == (100, 50)
        accounts["demo"] = AccountRules(HostRules.of(["elsewhere.test"]), accounts["demo"].presets)
        assert isinstance(await fail(stage, "preset=card", upstream.url()), ForbiddenUrl)

    run(tmp_path, reply(body=SMALL), work, accounts=accounts)


def test_an_account_that_demands_signatures_takes_no_others(tmp_path: Path) -> None:
    async def work(stage: Stage, upstream: Upstream) -> None:
        url = upstream.url()
        now_s = stage.clock.now_ms() // 1_000

        def signed(key: str, expires: str, options: str = "w=50") -> Signature:
            return Signature(expires, sign_url(key, "demo", options, url, expires))

        later = str(now_s + 60)
        for key in ("new", "old"):
            await stage.service.get(Asker("demo"), "w=50", url, signed(key, later))
        for given, text in (
            (None, "signed URLs only"),
            (signed("other", later), "does not match"),
            (signed("new", later, "w=100"), "does not match"),
            (Signature(str(now_s + 61), signed("new", later).signature), "does not match"),
            (signed("new", "soon"), "does not match"),
            (Signature(later, "\u00e4"), "does not match"),
            (signed("new", str(now_s - 5)), "expired"),
        ):
            with pytest.raises(ForbiddenUrl, match=text):
                await stage.service.get(Asker("demo"), "w=50", url, given)
        assert len(upstream.seen) == 1

    run(tmp_path, reply(body=SMALL), work, accounts={"demo": AccountRules(signing_keys=("new", "old"))})


def test_a_signature_is_what_the_documentation_says() -> None:
    # Made with openssl: printf 'demo\nw=50\nhttps://a.test/b.png\n1893456000' | openssl dgst -sha256 -hmac …
    assert (
        sign_url("secret", "demo", "w=50", "https://a.test/b.png", "1893456000")
        == "5woj8cVZ82Ay_gTCw2DoeJS0D5l6hAXImE-_Teu51v8"
    )


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        *((url, ForbiddenUrl) for url in FORBIDDEN),
        *((url, InvalidImageUrl) for url in INVALID),
        ("http://mixed.test/a.png", ForbiddenUrl),
        ("http://@mixed.test/a.png", ForbiddenUrl),
    ],
)
def test_a_place_that_is_not_for_us_is_refused(tmp_path: Path, url: str, kind: type[BrokerError]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host.startswith("localhost") else ["8.8.8.8", "10.0.0.1"]

    async def go() -> None:
        async with open_stage(tmp_path, Fetcher(resolve=resolve)) as stage:
            error = await fail(stage, "w=50", url)
            assert type(error) is kind
            for inner in (*INNER, "8.8.8.8"):
                assert inner not in error.message

    asyncio.run(go())
