"""Processes that decode: what they may not do, and what their end costs."""

import asyncio
import math
import os
import signal
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
import pytest
import pyvips

from broker.concurrency.shares import Asker
from broker.errors import Unavailable
from broker.images.body_files import BodyFile
from broker.images.errors import DecoderEnded, UnprocessableImage
from broker.images.jobs import DecodeLimits, Job
from broker.images.options import parse_options
from broker.images.workers import KeptImage, WorkerConfig, Workers
from tests.images.decoder_processes import decoders_of
from tests.images.samples import animation, decibels, gradient, photograph

SMALL = bytes(gradient(64, 48).pngsave_buffer())
RENDER = Job("render", DecodeLimits(), parse_options("w=50,f=jpg"))


_NUMBERS = count(1_000)


def open_workers(**config: object) -> Workers:
    return Workers(WorkerConfig(**{"processes": 1, **config}))  # type: ignore[arg-type]


def as_file(data: bytes) -> BodyFile:
    return BodyFile.of_parts([data])


def children() -> list[psutil.Process]:
    return decoders_of(os.getpid())


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    yield
    for process in children():
        process.kill()
        process.wait(30)


def test_a_child_that_has_ended_is_not_taken_for_a_decoder() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not children()


def test_images_are_shrunk_fast_where_that_was_chosen() -> None:
    async def ask(*, shrinks_fast: bool) -> bytes:
        workers = open_workers(shrinks_fast=shrinks_fast)
        try:
            return (await workers.run(job, as_file(data)))[1]
        finally:
            await workers.close()

    data = bytes(photograph(800, 600).jpegsave_buffer(Q=95))
    job = Job("render", DecodeLimits(), parse_options("w=200,f=png"))
    fast, fine = (asyncio.run(ask(shrinks_fast=chosen)) for chosen in (True, False))
    decoded = pyvips.Image.new_from_buffer(data, "", shrink=4)
    assert decibels(pyvips.Image.new_from_buffer(fast, ""), decoded) == math.inf
    assert decibels(pyvips.Image.new_from_buffer(fine, ""), decoded) < 50


def test_an_image_is_made_described_and_previewed() -> None:
    async def ask() -> None:
        workers = open_workers()
        try:
            reply, body = await workers.run(RENDER, as_file(SMALL))
            assert (reply.size.width, reply.format, body[:2]) == (50, "jpg", b"\xff\xd8")
            reply, body = await workers.run(Job("preview", DecodeLimits()), as_file(SMALL))
            assert (reply.size.width, reply.scale, len(body)) == (64, 1.0, 64 * 48 * 3)
            reply, _ = await workers.run(Job("describe", DecodeLimits()), as_file(SMALL))
            assert reply.description is not None
            assert reply.description.type == "image/png"
        finally:
            await workers.close()
        assert not children()

    asyncio.run(ask())


def test_a_broken_image_costs_no_process() -> None:
    async def ask() -> None:
        workers = open_workers()
        with pytest.raises(UnprocessableImage):
            await workers.run(RENDER, as_file(SMALL[:100]))
        (before,) = children()
        await workers.run(RENDER, as_file(SMALL))
        assert children() == [before]
        await workers.close()

    asyncio.run(ask())


def test_a_process_knows_no_environment_and_writes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_SECRET_OF_A_TEST", "x")

    async def ask() -> None:
        workers = open_workers(memory_bytes=700 << 20)
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        assert not process.environ()
        assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
        assert process.rlimit(psutil.RLIMIT_DATA) == (700 << 20, 700 << 20)
        await workers.close()

    asyncio.run(ask())


def slow_job() -> tuple[Job, BodyFile]:
    """Quantising the colours of sixty frames takes seconds."""
    source = bytes(animation(800, 800, 60).webpsave_buffer(Q=10, effort=0))
    return Job("render", DecodeLimits(), parse_options("f=gif")), as_file(source)


async def until_at_work() -> None:
    """Until a process is busy with a slow job."""
    async with asyncio.timeout(60):
        while not any(process.cpu_times().user > 1 for process in children()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def crash_next(crashed: set[int]) -> None:
    """Crash the one process that is not among those that have crashed, once it is there."""
    async with asyncio.timeout(60):
        while not (running := [process for process in children() if process.pid not in crashed]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (process,) = running
    crashed.add(process.pid)
    process.send_signal(signal.SIGSEGV)
    with suppress(psutil.NoSuchProcess):  # it was not stopped, and is gone
        process.resume()  # one that is stopped gets no signal before


def test_an_image_whose_process_crashes_is_tried_once_more() -> None:
    async def ask() -> None:
        workers, crashed = open_workers(), set[int]()
        await workers.run(RENDER, as_file(SMALL))
        children()[0].suspend()  # so that it crashes with the first of these
        asked = [asyncio.create_task(workers.run(RENDER, as_file(SMALL))) for _ in range(5)]
        await asyncio.sleep(0)
        await crash_next(crashed)
        assert [reply.size.width for reply, _ in await asyncio.gather(*asked)] == [50] * 5
        (process,) = children()
        assert process.pid not in crashed
        await workers.close()

    asyncio.run(ask())


def test_an_image_that_crashes_two_processes_fails_alone() -> None:
    async def ask() -> None:
        workers, crashed = open_workers(), set[int]()
        await workers.run(RENDER, as_file(SMALL))
        crashing = asyncio.create_task(workers.run(*slow_job()))
        await asyncio.sleep(0)  # it has its turn
        behind = [asyncio.create_task(workers.run(RENDER, as_file(SMALL))) for _ in range(5)]
        for _ in range(2):
            await crash_next(crashed)
        with pytest.raises(DecoderEnded, match="cannot be processed"):
            await crashing
        assert [reply.size.width for reply, _ in await asyncio.gather(*behind)] == [50] * 5
        await workers.close()

    asyncio.run(ask())


def test_an_image_is_tried_again_in_a_new_process() -> None:
    """One that has worked for others may have been damaged by them."""

    async def ask() -> None:
        workers = open_workers(processes=2)
        await asyncio.gather(*(workers.run(RENDER, as_file(SMALL)) for _ in range(2)))
        used = children()
        assert len(used) == 2
        trying = asyncio.create_task(workers.run(*slow_job()))
        async with asyncio.timeout(60):
            while max(process.cpu_times().user for process in used) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        idle, busy = sorted(used, key=lambda process: process.cpu_times().user)
        busy.send_signal(signal.SIGSEGV)
        async with asyncio.timeout(60):
            while not set(children()) - set(used):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert idle in children()
        assert not trying.done()
        await workers.close()
        with pytest.raises(Unavailable):
            await trying

    asyncio.run(ask())


def test_a_process_that_takes_too_much_processor_time_is_ended() -> None:
    async def ask() -> None:
        workers = open_workers(job_s=0.2)
        with pytest.raises(DecoderEnded) as ended:
            await workers.run(*slow_job())
        assert ended.value.log_text == "its process took more than 0.2 s of processor time"
        assert not children()
        await workers.close()

    asyncio.run(ask())


def test_a_machine_that_has_no_time_costs_no_image() -> None:
    async def ask() -> None:
        workers = open_workers(job_s=1)
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        process.suspend()
        asked = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        await asyncio.wait([asked], timeout=1.5)
        process.resume()
        reply, _ = await asked
        assert reply.size.width == 50
        assert children() == [process]
        await workers.close()

    asyncio.run(ask())


def test_processor_time_is_counted_for_each_job() -> None:
    async def ask() -> None:
        workers = open_workers(job_s=0.5)
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        async with asyncio.timeout(60):
            while process.cpu_times().user + process.cpu_times().system < 1.5:
                await workers.run(RENDER, as_file(SMALL))
        assert children() == [process]
        await workers.close()

    asyncio.run(ask())


def test_a_process_that_does_not_answer_blames_the_moment() -> None:
    async def ask() -> None:
        workers = open_workers(wall_s=0.001)  # before it has begun
        with pytest.raises(Unavailable, match="too busy"):
            await workers.run(RENDER, as_file(SMALL))
        assert len(children()) == 1  # for the next one
        await workers.close()
        assert not children()

    asyncio.run(ask())


async def kept_by(workers: Workers, data: bytes, kept: KeptImage | None = None) -> tuple[KeptImage, Job]:
    """An image after its preview, and the job of its crop."""
    options = parse_options("w=50,h=50,fit=face,f=png")
    kept = kept or KeptImage(next(_NUMBERS))  # of a request that goes on
    look = Job("preview", DecodeLimits(), options, number=kept.number)
    reply, _ = await workers.run(look, as_file(data), kept=kept)
    assert (reply.is_kept, kept.worker is None) == (True, False)
    return kept, Job("render", DecodeLimits(), options, number=kept.number)


HALF = SMALL[: len(SMALL) // 2]  # its header is whole, so only who has its pixels makes anything of it


def test_a_crop_is_made_of_what_the_preview_decoded() -> None:
    async def ask() -> None:
        workers = open_workers(kept_idle_s=600)
        (one, crop_one), (two, crop_two) = [await kept_by(workers, SMALL) for _ in range(2)]
        await workers.run(RENDER, as_file(SMALL))  # another job in between
        for kept, crop in ((two, crop_two), (one, crop_one)):
            reply, _ = await workers.run(crop, as_file(HALF), kept=kept)
            assert reply.size.width == 50
        with pytest.raises(UnprocessableImage):
            await workers.run(crop_one, as_file(HALF), kept=one)  # once only
        await workers.close()

    asyncio.run(ask())


def test_the_image_of_a_request_that_has_ended_is_kept_no_longer() -> None:
    async def ask() -> None:
        workers = open_workers(kept_idle_s=600)
        with workers.keeping_image() as kept:
            _, crop = await kept_by(workers, SMALL, kept)
        with pytest.raises(UnprocessableImage):
            await workers.run(crop, as_file(HALF))
        await workers.close()

    asyncio.run(ask())


def test_an_image_whose_crop_is_made_elsewhere_is_kept_no_longer() -> None:
    async def ask() -> None:
        workers = open_workers(processes=2, kept_idle_s=600)
        kept, crop = await kept_by(workers, SMALL)
        keeper = kept.worker
        busy = asyncio.create_task(workers.run(*slow_job()))
        await until_at_work()
        await workers.run(crop, as_file(SMALL), kept=kept)
        await busy
        with pytest.raises(UnprocessableImage):
            await workers.run(crop, as_file(HALF), kept=KeptImage(kept.number, keeper))
        await workers.close()

    asyncio.run(ask())


def test_a_process_that_ended_with_a_kept_image_costs_nobody_a_request() -> None:
    async def ask() -> None:
        workers = open_workers(kept_idle_s=600)
        kept, crop = await kept_by(workers, SMALL)
        (process,) = children()
        process.kill()
        process.wait(30)
        reply, _ = await workers.run(crop, as_file(SMALL), kept=kept)
        assert reply.size.width == 50
        await workers.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("idle", "data"),
    [
        pytest.param(1, HALF, id="who keeps an image is the last to get another job"),
        pytest.param(0, SMALL, id="who is busy with another job is not waited for"),
    ],
)
def test_a_crop_is_made_beside_another_job(idle: int, data: bytes) -> None:
    async def ask() -> None:
        workers = open_workers(processes=2, kept_idle_s=600)
        await asyncio.gather(*(workers.run(RENDER, as_file(SMALL)) for _ in range(1 + idle)))
        assert len(children()) == 1 + idle
        kept, crop = await kept_by(workers, SMALL)
        busy = asyncio.create_task(workers.run(*slow_job()))
        await until_at_work()
        assert len(children()) == 1 + idle
        reply, _ = await workers.run(crop, as_file(data), kept=kept)
        assert reply.size.width == 50
        assert not busy.done()
        await workers.close()
        with pytest.raises(Unavailable):
            await busy

    asyncio.run(ask())


def test_an_idle_process_forgets_what_it_keeps() -> None:
    async def ask() -> None:
        workers = open_workers(kept_idle_s=0)
        kept, crop = await kept_by(workers, SMALL)
        (process,) = children()
        async with asyncio.timeout(60):  # until it waits for a job
            while process.status() != psutil.STATUS_SLEEPING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(UnprocessableImage):
            await workers.run(crop, as_file(HALF), kept=kept)
        await workers.close()

    asyncio.run(ask())


def test_a_process_that_hangs_is_ended_in_time_and_blames_no_image() -> None:
    async def ask() -> None:
        workers = open_workers(wall_s=5)
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        process.suspend()
        hung = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        behind = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        with pytest.raises(Unavailable, match="too busy"):
            await hung
        reply, _ = await behind
        assert reply.size.width == 50
        assert process not in children()
        await workers.close()

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_job_that_is_cancelled_gives_its_place_back() -> None:
    async def ask() -> None:
        workers = open_workers()
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        process.suspend()
        hung = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        await asyncio.sleep(0)  # it has its turn
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        assert not children()
        await workers.run(RENDER, as_file(SMALL))
        await workers.close()

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_job_that_waits_for_room_can_be_cancelled() -> None:
    async def ask() -> None:
        workers = open_workers(processes=2, pixels=1)
        first = asyncio.create_task(workers.run(*slow_job()))
        async with asyncio.timeout(60):
            while sum(process.cpu_times().user for process in children()) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        second = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        await asyncio.wait([second], timeout=1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        assert len(children()) == 1
        await workers.close()
        with pytest.raises(Unavailable):
            await first

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_small_image_waits_for_no_room() -> None:
    async def ask() -> None:
        workers = open_workers(processes=2, pixels=8 * 2 * 64 * 48)
        large = asyncio.create_task(workers.run(*slow_job()))
        await until_at_work()
        await workers.run(RENDER, as_file(SMALL))
        assert not large.done()
        await workers.close()
        with pytest.raises(Unavailable):
            await large

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_process_whose_job_is_cancelled_before_it_is_there_is_for_the_next() -> None:
    async def ask() -> None:
        workers = open_workers()
        cancelled = asyncio.create_task(workers.run(RENDER, as_file(SMALL)))
        await asyncio.sleep(0)  # it has its turn
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        before = children()
        assert len(before) == 1
        await workers.run(RENDER, as_file(SMALL))
        assert children() == before
        await workers.close()

    asyncio.run(asyncio.wait_for(ask(), 60))


def bomb(side: int) -> bytes:
    """A PNG of one colour whose header says `side` by `side`; interlaced, so that it is decoded whole."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    head = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 1])
    rows = zlib.compress(bytes(side * 3 * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_by_its_header_or_by_memory() -> None:
    async def ask() -> None:
        workers = open_workers(memory_bytes=300 << 20)
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        before = process.cpu_times().user
        with pytest.raises(UnprocessableImage, match="megapixels"):
            await workers.run(RENDER, as_file(bomb(8000)))
        assert process.cpu_times().user - before < 0.5  # nothing is decoded
        with pytest.raises(UnprocessableImage):
            await workers.run(
                Job("render", DecodeLimits(10**9, 10**9), parse_options("w=50")), as_file(bomb(12_000))
            )
        await workers.run(RENDER, as_file(SMALL))
        await workers.close()

    asyncio.run(ask())


def test_a_process_is_exchanged_after_its_jobs() -> None:
    async def ask() -> None:
        workers = open_workers(jobs=2)
        pids = set()
        for _ in range(4):
            await workers.run(RENDER, as_file(SMALL))
            pids.update(process.pid for process in children())
        assert len(pids) == 2
        await workers.close()

    asyncio.run(ask())


def test_what_its_parent_holds_is_not_a_processs_memory() -> None:
    async def ask() -> None:
        ballast = bytearray(b"x") * (300 << 20)  # written to, so that it is resident
        workers = Workers(WorkerConfig(processes=1, recycle_bytes=250 << 20))
        reply, _ = await workers.run(RENDER, as_file(SMALL))
        assert reply.memory_bytes < len(ballast) // 2
        (before,) = children()
        await workers.run(RENDER, as_file(SMALL))
        assert children() == [before]
        await workers.close()

    asyncio.run(ask())


def test_too_many_waiting_jobs_are_refused_at_once() -> None:
    async def ask() -> None:
        workers = open_workers(waiting=4)
        asked = [asyncio.create_task(workers.run(RENDER, as_file(SMALL), Asker("greedy"))) for _ in range(4)]
        asked.append(asyncio.create_task(workers.run(RENDER, as_file(SMALL), Asker("demo"))))
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [tuple, tuple, tuple, Unavailable, tuple]
        await workers.close()

    asyncio.run(ask())


def test_images_larger_than_the_room_are_made_one_after_the_other() -> None:
    async def ask() -> None:
        workers = open_workers(processes=2, pixels=1)
        results = await asyncio.gather(*(workers.run(RENDER, as_file(SMALL)) for _ in range(6)))
        assert len(results) == 6
        await workers.close()

    asyncio.run(ask())


def test_closing_ends_what_runs() -> None:
    async def ask() -> None:
        workers = open_workers()
        job = asyncio.create_task(workers.run(*slow_job()))
        async with asyncio.timeout(30):
            while not children():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await workers.close()
        with pytest.raises(Unavailable):
            await job
        with pytest.raises(Unavailable):
            await workers.run(RENDER, as_file(SMALL))
        assert not children()

    asyncio.run(ask())


def test_a_description_says_what_to_paint_first() -> None:
    async def ask() -> None:
        workers = open_workers()
        red = pyvips.Image.black(80, 40, bands=3).linear(1, [250, 10, 10]).cast("uchar")
        data = bytes(red.copy(interpretation="srgb").pngsave_buffer())
        reply, _ = await workers.run(Job("describe", DecodeLimits()), as_file(data))
        found = reply.description
        assert found is not None
        assert (found.size.width, found.size.height, found.frames, found.has_alpha) == (80, 40, 1, False)
        assert found.color == "#fa0a0a"
        assert (len(found.blurhash), len(found.thumbhash)) == (28, 28)
        await workers.close()

    asyncio.run(ask())


def test_a_process_that_died_while_it_was_idle_blames_no_image() -> None:
    async def ask() -> None:
        workers = open_workers()
        await workers.run(RENDER, as_file(SMALL))
        (idle,) = children()
        idle.kill()
        idle.wait(30)
        reply, _ = await workers.run(RENDER, as_file(SMALL))
        assert reply.size.width == 50
        await workers.close()

    asyncio.run(ask())


def test_a_decoder_is_the_first_that_a_machine_short_of_memory_ends() -> None:
    async def ask() -> None:
        workers = open_workers()
        await workers.run(RENDER, as_file(SMALL))
        (process,) = children()
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "900"  # noqa: ASYNC240
        await workers.close()

    asyncio.run(ask())
