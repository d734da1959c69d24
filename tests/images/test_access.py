"""Whoever would not get an image if nothing were kept does not get it from a cache either."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.concurrency.shares import Asker
from broker.fetching.errors import ForbiddenUrl
from broker.fetching.fetcher import FetchConfig, Fetcher
from broker.fetching.urls import AllowList
from broker.image_urls import image_path
from broker.images.account_rules import AccountRules
from broker.images.administration import RuleChange, change_rules
from broker.images.host_rules import HostRules
from broker.images.service import ServedImage
from tests.adversity.clock import SteppedClock
from tests.auth.services import open_database
from tests.fetching.upstream import Answer, Resolver, Seen, Upstream, open_fetcher, open_upstream, reply, send
from tests.images.replica import open_replica
from tests.images.samples import gradient
from tests.images.stage import Stage, open_stage

SMALL = bytes(gradient(160, 120).pngsave_buffer())
WAY = ("first.test", "middle.test", "last.test")  # from redirect to redirect
DAY_S = 86_400

Work = Callable[[Stage, Upstream], Awaitable[None]]


def allow(*hosts: str) -> AccountRules:
    return AccountRules(HostRules.of(hosts))


def run(directory: Path, answer: Answer, work: Work, accounts: dict[str, AccountRules]) -> None:
    async def go() -> None:
        async with (
            open_upstream(answer) as upstream,
            open_stage(directory, open_fetcher(upstream.port), accounts=accounts) as stage,
        ):
            await work(stage, upstream)

    asyncio.run(go())


async def lead(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """From each host to the next; the last one has the image."""
    host, _, port = seen.headers["host"].partition(":")
    if host == WAY[-1]:
        await send(writer, 200, SMALL, ETag='"one"')
    else:
        await send(writer, 302, Location=f"http://{WAY[WAY.index(host) + 1]}:{port}/")


async def get(stage: Stage, upstream: Upstream, options: str = "w=50") -> ServedImage:
    return await stage.service.get(Asker("demo"), options, upstream.url(host=WAY[0]))


@pytest.mark.parametrize("left", [WAY[1:], (WAY[0], WAY[2]), WAY[:2]], ids=["first", "middle", "last"])
@pytest.mark.parametrize("options", ["w=50", "w=100"], ids=["a result", "a source"])
def test_each_host_on_the_way_to_a_kept_image_is_judged_again(
    tmp_path: Path, left: tuple[str, ...], options: str
) -> None:
    accounts = {"demo": allow(*WAY)}

    async def work(stage: Stage, upstream: Upstream) -> None:
        await get(stage, upstream)
        accounts["demo"] = allow(*left)
        with pytest.raises(ForbiddenUrl, match="does not allow images from this host"):
            await get(stage, upstream, options)

    run(tmp_path, lead, work, accounts)


def test_a_kept_image_stays_with_other_rules_that_allow_it(tmp_path: Path) -> None:
    accounts = {"demo": allow(*WAY)}

    async def work(stage: Stage, upstream: Upstream) -> None:
        await get(stage, upstream)
        accounts["demo"] = allow("*.test")
        assert (await get(stage, upstream)).is_hit
        assert len(upstream.seen) == 3

    run(tmp_path, lead, work, accounts)


def test_an_image_on_disk_is_judged_by_the_process_that_finds_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_upstream(lead) as upstream:
            for rules in (allow(*WAY), allow(*WAY)):
                async with open_stage(
                    tmp_path, open_fetcher(upstream.port), accounts={"demo": rules}
                ) as stage:
                    served = await get(stage, upstream)
            assert served.is_hit
            narrow = {"demo": allow(*WAY[:2])}
            async with open_stage(tmp_path, open_fetcher(upstream.port), accounts=narrow) as stage:
                with pytest.raises(ForbiddenUrl):
                    await get(stage, upstream)

    asyncio.run(go())


def test_where_an_old_source_leads_now_is_what_is_judged(tmp_path: Path) -> None:
    """Its server says that it is as it was, and has moved it."""
    accounts = {"demo": AccountRules()}
    is_moved = False

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        host, _, port = seen.headers["host"].partition(":")
        if host == WAY[0] and is_moved:
            await send(writer, 302, Location=f"http://{WAY[1]}:{port}/")
        else:
            await send(writer, 304 if is_moved else 200, b"" if is_moved else SMALL, ETag='"one"')

    async def work(stage: Stage, upstream: Upstream) -> None:
        nonlocal is_moved
        await get(stage, upstream)
        is_moved, stage.clock.later_s = True, 90_000
        assert (await get(stage, upstream)).is_hit
        accounts["demo"] = allow(WAY[0])
        with pytest.raises(ForbiddenUrl):
            await get(stage, upstream)

    run(tmp_path, answer, work, accounts)


def test_an_old_image_of_a_host_that_fails_is_not_shown_without_its_right(tmp_path: Path) -> None:
    accounts = {"demo": allow(*WAY)}
    fails = False

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await (send(writer, 503) if fails else lead(seen, writer))

    async def work(stage: Stage, upstream: Upstream) -> None:
        nonlocal fails
        await get(stage, upstream)
        fails, stage.clock.later_s = True, 4_000  # the source is old, and may be shown for a day
        assert not (await get(stage, upstream, "w=100")).is_hit
        accounts["demo"] = allow(*WAY[:2])
        for options in ("w=50", "w=100", "w=200"):
            with pytest.raises(Exception, match="answers 503"):
                await get(stage, upstream, options)

    run(tmp_path, answer, work, accounts)


def test_who_asks_under_new_rules_does_not_join_what_was_begun_under_old_ones(tmp_path: Path) -> None:
    accounts = {"demo": allow(*WAY)}
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.headers["host"].startswith(WAY[2]):
            is_asked.set()
            await may_answer.wait()
        await lead(seen, writer)

    async def work(stage: Stage, upstream: Upstream) -> None:
        before = asyncio.create_task(get(stage, upstream))
        await is_asked.wait()
        accounts["demo"] = allow(*WAY[:2])
        after = [asyncio.create_task(get(stage, upstream, options)) for options in ("w=50", "w=100")]
        await asyncio.sleep(0)
        may_answer.set()
        assert not (await before).is_hit
        for refused in after:
            with pytest.raises(ForbiddenUrl):
                await refused

    run(tmp_path, answer, work, accounts)


def test_an_error_that_old_rules_were_the_reason_for_is_not_told_under_new_ones(tmp_path: Path) -> None:
    accounts = {"demo": allow(*WAY[:2])}

    async def work(stage: Stage, upstream: Upstream) -> None:
        with pytest.raises(ForbiddenUrl):
            await get(stage, upstream)
        accounts["demo"] = allow(*WAY)
        assert not (await get(stage, upstream)).is_hit

    run(tmp_path, lead, work, accounts)


@pytest.mark.parametrize("options", ["w=50", "w=100"], ids=["a result", "a source"])
def test_what_came_from_a_private_host_goes_with_its_permission(tmp_path: Path, options: str) -> None:
    async def go() -> None:
        async with open_upstream(reply(body=SMALL)) as upstream:
            host = f"first.test:{upstream.port}"
            for entries, expected in (((host,), False), ((host, "other.test"), True), ((), None)):
                config = FetchConfig(AllowList(entries), frozenset({upstream.port}))
                async with open_stage(tmp_path, Fetcher(config, resolve=Resolver())) as stage:
                    if expected is not None:
                        assert (await get(stage, upstream)).is_hit is expected
                    else:
                        with pytest.raises(ForbiddenUrl, match="address that is not allowed"):
                            await get(stage, upstream, options)
            assert len(upstream.seen) == 1

    asyncio.run(go())


def test_what_came_from_a_port_goes_with_its_permission(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_upstream(reply(body=SMALL)) as upstream:
            async with open_stage(tmp_path, open_fetcher(upstream.port)) as stage:
                await get(stage, upstream)
            async with open_stage(tmp_path, open_fetcher(80)) as stage:
                with pytest.raises(ForbiddenUrl, match="port must be one of 80"):
                    await get(stage, upstream)

    asyncio.run(go())


def test_a_kept_image_needs_a_signature_once_the_account_demands_them(tmp_path: Path) -> None:
    accounts = {"demo": AccountRules()}

    async def work(stage: Stage, upstream: Upstream) -> None:
        await get(stage, upstream)
        accounts["demo"] = AccountRules(signing_keys=("key",))
        with pytest.raises(ForbiddenUrl, match="signed URLs only"):
            await get(stage, upstream)

    run(tmp_path, lead, work, accounts)


@pytest.mark.postgres
def test_the_end_of_a_signed_url_does_not_depend_on_the_clock_of_its_node(
    tmp_path: Path, migrated_dsn: str
) -> None:
    clock = SteppedClock(tmp_path)
    clock.set(-DAY_S)

    async def go() -> None:
        async with open_database(migrated_dsn) as database:
            (key,) = (await change_rules(database, "demo", RuleChange(signing="on"))).rules.signing_keys
        async with (
            open_upstream(reply(body=SMALL)) as upstream,
            open_replica(migrated_dsn, tmp_path, upstream.port, clock.environment) as replica,
        ):
            url, now_s = upstream.url(host="127.0.0.1"), int(time.time())
            told = [
                await replica.get(image_path("demo", "w=50", url, signing_key=key, expires=now_s + left_s))
                for left_s in (3_600, -3_600)
            ]
        assert [each.status for each in told] == [200, 403]
        kept_s = [int(each.headers["cache-control"].split("max-age=")[1].split(",")[0]) for each in told]
        assert 0 < kept_s[0] <= 3_600
        assert kept_s[1] == 0

    asyncio.run(go())
