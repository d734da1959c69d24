"""Images are asked for ahead, as often as is worth it, and nothing waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from broker.errors import NotFound
from broker.image_urls import sign_url
from broker.images.account_rules import AccountRules
from broker.images.purge_notices import HEADER, read_notice
from broker.operations.image_warmer import ImageWarmer, check_options
from broker.settings import SettingError, Settings
from tests.auth.services import StoppedClock
from tests.fetching.upstream import Answer, Seen, Upstream, open_upstream, reply, send

pytestmark = pytest.mark.anyio

MADE = reply(X_Cache="MISS")


def rules_of(**accounts: AccountRules) -> Callable[[str], Awaitable[AccountRules]]:
    async def rules(account: str) -> AccountRules:
        if account not in accounts:
            raise NotFound("there is no such account")
        return accounts[account]

    return rules


async def newest_purge() -> int:
    return 7


@asynccontextmanager
async def opened(
    answer: Answer,
    fields: tuple[str, ...] = ("photo",),
    options: str = "w=50",
    rules: AccountRules | None = None,
) -> AsyncIterator[tuple[ImageWarmer, Upstream]]:
    """A warmer whose door is a server that answers `answer`."""
    async with open_upstream(answer) as door:
        settings = Settings(
            http_port=door.port,
            images_warm_fields=fields,
            images_warm_options=options,
            ingress_key="right",
        )
        known = rules_of(demo=rules or AccountRules())
        warmer = ImageWarmer(settings, "127.0.0.1", known, newest_purge, StoppedClock())
        running = asyncio.create_task(warmer.run())
        yield warmer, door
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await warmer.close()


def counts(warmer: ImageWarmer) -> dict[str, float]:
    return {sample.labels[0]: float(sample.value) for sample in warmer.figures()}  # type: ignore[arg-type]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - it is on the other side of a socket
            await asyncio.sleep(0.01)


def sources(door: Upstream) -> list[str]:
    return [parse_qs(urlsplit(seen.path).query)["url"][0] for seen in door.seen]


async def test_every_url_of_the_named_fields_is_asked_for_once() -> None:
    metadata = {
        "photo": "https://a.test/1.png",
        "other": "https://a.test/no.png",
        "teams": [
            {"players": [{"photo": "https://a.test/2.png"}, {"photo": "https://a.test/1.png"}, 5]},
            {"players": {"photo": ["https://a.test/3.png", "ftp://a.test/no", None]}},
        ],
    }
    async with opened(MADE, ("photo", "teams.players.photo"), "w=50 w=100,f=webp") as (warmer, door):
        for _ in range(3):
            warmer.note("demo", [metadata])
        await until(lambda: counts(warmer).get("made") == 6)
        assert sorted(sources(door)) == sorted([f"https://a.test/{n}.png" for n in (1, 2, 3)] * 2)
        assert {seen.method for seen in door.seen} == {"HEAD"}
        assert {urlsplit(seen.path).path for seen in door.seen} == {
            "/api/v2/imgproxy/demo/w=50",
            "/api/v2/imgproxy/demo/w=100,f=webp",
        }


async def test_events_without_urls_ask_for_nothing() -> None:
    async with opened(MADE) as (warmer, door):
        for metadata in (None, {}, {"photo": 5}, {"photo": "a.png"}, {"photo": {"photo": "http://a.test"}}):
            warmer.note("demo", [metadata])
        warmer.note("demo", [{"photo": "https://a.test/" + "x" * 2_048}])
        warmer.note("demo", [{"photo": "https://a.test/last.png"}])
        await until(lambda: bool(door.seen))
        assert sources(door) == ["https://a.test/last.png"]


async def test_what_finds_the_queue_full_is_dropped_at_once_and_counted() -> None:
    held = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        await send(writer, 200)

    async with opened(answer) as (warmer, _):
        for number in range(1_500):
            warmer.note("demo", [{"photo": f"https://a.test/{number}.png"}])
        assert counts(warmer) == {"dropped": 500}
        held.set()
        await until(lambda: counts(warmer).get("made") == 1_000)
        warmer.note("demo", [{"photo": "https://a.test/1499.png"}])
        await until(lambda: counts(warmer).get("made") == 1_001)


async def test_one_event_asks_for_a_bounded_number_whatever_it_holds() -> None:
    async with opened(MADE, ("photo",)) as (warmer, _):
        deep: object = "https://a.test/deep.png"
        for _ in range(50):
            deep = [deep] * 2
        began_s = time.process_time()
        warmer.note("demo", [{"photo": [f"https://a.test/{n}.png" for n in range(50_000)]}])
        warmer.note("demo", [{"photo": deep}])
        assert time.process_time() - began_s < 5, "2^50 paths lead to it"
        await until(lambda: counts(warmer).get("made", 0) >= 20)
        assert counts(warmer)["made"] <= 40


async def test_one_batch_is_looked_at_within_bounds() -> None:
    async with opened(MADE) as (warmer, _):
        long = {"photo": ["x"] * 1_000}
        warmer.note("demo", [*[long] * 1_000, {"photo": "https://a.test/last.png"}])
        assert counts(warmer) == {"dropped": 991}
        warmer.note("demo", [{"photo": "https://a.test/next.png"}, None])
        await until(lambda: counts(warmer).get("made") == 1)


async def test_failures_are_counted_and_a_door_that_is_away_too() -> None:
    async with opened(reply(422, b'{"error":"invalid_options"}')) as (warmer, _):
        warmer.note("demo", [{"photo": "https://a.test/a.png"}])
        warmer.note("nobody", [{"photo": "https://a.test/a.png"}])
        await until(lambda: counts(warmer) == {"failed": 2})


async def test_signed_accounts_get_signed_urls() -> None:
    async with opened(MADE, rules=AccountRules(signing_keys=("new", "old"))) as (warmer, door):
        warmer.note("demo", [{"photo": "https://a.test/a.png"}])
        await until(lambda: bool(door.seen))
        query = parse_qs(urlsplit(door.seen[0].path).query)
        (expires,), (signature,) = query["expires"], query["signature"]
        assert int(expires) > StoppedClock().ms // 1_000
        assert signature == sign_url("new", "demo", "w=50", "https://a.test/a.png", expires)


async def test_who_asks_is_told_what_each_image_is_answered() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if "w=51" in seen.path:
            body = b"" if seen.method == "HEAD" else b'{"error":"invalid_options","error_description":"w: x"}'
            await send(writer, 422, body)
        elif "hit.png" in seen.path:
            await send(writer, 200, X_Cache="HIT")
        elif "busy.png" in seen.path:
            await send(writer, 503)
        else:
            await send(writer, 200, X_Cache="MISS")

    async with opened(answer, fields=()) as (warmer, _):
        assert not warmer.is_on
        wanted = [("https://a.test/a.png", "w=50"), ("https://a.test/a.png", "w=51")]
        wanted += [("https://a.test/hit.png", "-"), ("https://a.test/busy.png", "-")]
        told = await warmer.warm("demo", wanted)
        assert [(each.status, each.error, each.is_hit, each.message) for each in told] == [
            (200, None, False, None),
            (422, "invalid_options", False, "w: x"),
            (200, None, True, None),
            (503, "unavailable", False, None),
        ]


async def test_each_request_names_the_newest_purge() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 502, b"" if seen.method == "HEAD" else b'{"error":"upstream_failed"}')

    async with opened(answer, fields=()) as (warmer, door):
        await warmer.warm("demo", [("https://a.test/a.png", "-")])
        assert [seen.method for seen in door.seen] == ["HEAD", "GET"]
        assert [read_notice("right", seen.headers[HEADER]) for seen in door.seen] == [7, 7]


async def test_a_door_that_is_away_is_told_for_each_image() -> None:
    async with opened(MADE, fields=()) as (_, door):
        port = door.port
    settings = Settings(http_port=port)
    away = ImageWarmer(settings, "127.0.0.1", rules_of(demo=AccountRules()), newest_purge, StoppedClock())
    told = await away.warm("demo", [("https://a.test/a.png", "-")] * 5)
    assert [(each.status, each.error) for each in told] == [(503, "unavailable")] * 5
    await away.close()


def test_options_that_no_image_can_have_stop_the_start() -> None:
    check_options(Settings(images_warm_options="preset=card,w=50 w=100,h=100,fit=face -"))
    with pytest.raises(SettingError, match="BROKER_IMAGES_WARM_OPTIONS=w=51: w: 50, or 100"):
        check_options(Settings(images_warm_options="w=50 w=51"))
