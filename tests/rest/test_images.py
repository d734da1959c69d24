"""Images over HTTP: paths, queries, headers and statuses, over a real service."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from broker.ids import IdSource
from broker.image_urls import image_path
from broker.images import purge_notices
from broker.images.account_rules import AccountRules
from broker.images.purge_notices import write_notice
from broker.rest.callers import HEADER
from broker.rest.images import ImageApp
from broker.settings import Settings
from tests.asgi import Told, ask
from tests.fetching.upstream import Answer, Seen, Upstream, open_fetcher, open_upstream, reply, send
from tests.images.samples import gradient
from tests.images.stage import LateClock, open_stage

SMALL = bytes(gradient(160, 120).pngsave_buffer())
ERROR_CACHE = "public, max-age=300"

Ask = Callable[..., Awaitable[Told]]


def run(
    directory: Path,
    work: Callable[[Ask, Upstream], Awaitable[None]],
    answer: Answer | None = None,
    key: str = "",
    accounts: Mapping[str, AccountRules] | None = None,
) -> None:
    async def go() -> None:
        async with (
            open_upstream(answer or reply(body=SMALL)) as upstream,
            open_stage(directory, open_fetcher(upstream.port), accounts=accounts) as stage,
        ):
            settings = Settings(ingress_key=key)
            clock, service = stage.clock, stage.service
            app = ImageApp(
                settings,
                clock,
                IdSource(clock),
                service.get,
                service.find,
                service.know_purges,
                stage.usage,
                30.0,
            )

            async def get(options: str, url: str | None = None, method: str = "GET", **headers: str) -> Told:
                query = f"?url={quote(upstream.url() if url is None else url, safe='')}"
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                return await ask(app, method, f"/api/v2/imgproxy/demo/{options}{query}", headers=sent)

            get.app, get.stage = app, stage  # type: ignore[attr-defined]
            await work(get, upstream)
            app.close()

    asyncio.run(go())


def test_an_image_comes_with_the_headers_of_the_interface(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        miss = await get("w=50,f=webp")
        assert (miss.status, miss.headers["content-type"]) == (200, "image/webp")
        assert miss.headers["x-cache"] == "MISS"
        assert miss.headers["cache-control"] == "public, max-age=5184000, s-maxage=86400"
        assert miss.headers["access-control-allow-origin"] == "*"
        assert miss.headers["x-content-type-options"] == "nosniff"
        assert miss.headers["content-length"] == str(len(miss.body))
        hit = await get("f=webp,w=50")
        assert (hit.headers["x-cache"], hit.body) == ("HIT", miss.body)
        assert len(upstream.seen) == 1

    run(tmp_path, work)


def test_options_may_be_percent_encoded(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        assert (await get("w%3D50%2Ch%3D50%2Cfit%3Dfill%3Atop")).status == 200

    run(tmp_path, work)


def test_head_and_conditions_are_honoured(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        whole = await get("-")
        head = await get("-", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))
        known = await get("-", if_none_match=f'"other", {whole.headers["etag"]}')
        assert (known.status, known.body, known.headers["etag"]) == (304, b"", whole.headers["etag"])
        assert known.headers["cache-control"] == whole.headers["cache-control"]

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("options", "url", "status", "name", "text"),
    [
        ("w=51", None, 422, "invalid_options", "w: 50, or 100"),
        ("w=100,w=100", None, 422, "invalid_options", "w: must not be repeated"),
        ("color=red", None, 422, "invalid_options", "color: unknown option"),
        ("q=85", None, 422, "invalid_options", "q: 10 to 100"),
        ("fit=fill", None, 422, "invalid_options", "fit: fill needs both"),
        ("padding=2", None, 422, "invalid_options", "padding: needs"),
        ("-", "ftp://a.test/", 422, "invalid_url", "http"),
        ("-", "http://u:p@a.test/", 422, "invalid_url", "password"),
        ("-", "", 422, "invalid_url", "http"),
        ("-", "http://127.1/", 403, "forbidden_url", "usual spelling"),
        ("-", "http://10.0.0.1:22/", 403, "forbidden_url", "port"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, options: str, url: str | None, status: int, name: str, text: str
) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        told = await get(options, url)
        assert (told.status, told.error["error"]) == (status, name)
        assert text in told.error["error_description"]
        assert told.headers["cache-control"] == ERROR_CACHE
        assert "x-cache" not in told.headers
        assert upstream.seen == []

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("answer", "status", "name"),
    [
        (reply(404, b"no"), 502, "upstream_failed"),
        (reply(200, b"<html>"), 502, "unprocessable_image"),
        (reply(200, SMALL[:-60]), 502, "unprocessable_image"),
        (reply(302, Location="file:///etc/passwd"), 403, "forbidden_url"),
    ],
)
def test_what_the_upstream_does_wrong_is_told(tmp_path: Path, answer: Answer, status: int, name: str) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        told = await get("w=50")
        assert (told.status, told.error["error"]) == (status, name)
        assert told.headers["cache-control"] == ERROR_CACHE

    run(tmp_path, work, answer)


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/api/v2/imgproxy/demo/-", 422, "url: is missing"),
        ("/api/v2/imgproxy/demo/-?url=http://a.test&url=http://b.test", 422, "url: must not be repeated"),
        ("/api/v2/imgproxy/demo/-?url=http://a.test/?b=1&c=2", 422, "url: must be percent-encoded"),
        ("/api/v2/imgproxy/demo/-?url=%ff", 422, "percent-encoded UTF-8"),
        (
            "/api/v2/imgproxy/demo/-?url=http://a.test/?" + "&".join("abcdefghij"),
            422,
            "has unknown parameters",
        ),
        (
            "/api/v2/imgproxy/demo/-?url=http://a.test/?" + "&".join("abcdefghijk"),
            422,
            "has over 10 parameters",
        ),
        ("/api/v2/imgproxy/demo/-?url=http%3A%2F%2Fa.test&expires=1", 422, "go together"),
        ("/api/v2/imgproxy/nobody/-?url=http%3A%2F%2Fa.test", 404, "no such account"),
        ("/api/v2/imgproxy/No.Body/-?url=http%3A%2F%2Fa.test", 404, "images are at"),
        ("/api/v2/imgproxy/demo?url=http%3A%2F%2Fa.test", 404, "images are at"),
        ("/api/v2/imgproxy/demo/-/more?url=http%3A%2F%2Fa.test", 404, "images are at"),
    ],
)
def test_a_request_that_is_none_is_refused(tmp_path: Path, target: str, status: int, text: str) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        told = await ask(get.app, "GET", target)  # type: ignore[attr-defined]
        assert told.status == status
        assert text in told.error["error_description"]
        assert told.headers["cache-control"] == ERROR_CACHE

    run(tmp_path, work)


def test_other_methods_are_refused_and_a_preflight_is_answered(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        told = await get("-", method="POST")
        assert (told.status, told.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        told = await get("-", method="OPTIONS")
        assert (told.status, told.headers["access-control-allow-methods"]) == (204, "GET, HEAD")

    run(tmp_path, work)


def test_who_comes_past_the_ingress_is_refused(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        assert (await get("-")).status == 403
        assert (await get("-", **{HEADER: "wrong public 127.0.0.1"})).status == 403
        assert (await get("-", **{HEADER: "right public 127.0.0.1"})).status == 200
        assert len(upstream.seen) == 1

    run(tmp_path, work, key="right")


def test_who_names_a_purge_is_answered_as_if_it_were_known_for_long(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        ingress = {HEADER: "right public 127.0.0.1"}
        assert (await get("w=50", **ingress)).headers["x-cache"] == "MISS"
        get.stage.purges.add("demo", upstream.url())  # type: ignore[attr-defined]
        for forged in ("1", write_notice("wrong", 1), write_notice("right", 2).replace("2", "1", 1), "x y"):
            told = await get("w=50", **ingress, **{purge_notices.HEADER: forged})
            assert told.headers["x-cache"] == "HIT"
        told = await get("w=50", **ingress, **{purge_notices.HEADER: write_notice("right", 1)})
        assert told.headers["x-cache"] == "MISS"
        assert len(upstream.seen) == 2

    run(tmp_path, work, key="right")


INGRESS = {HEADER: "right public 127.0.0.1"}


def plain(url: str, options: str = "w=50", **headers: str) -> bytes:
    """A request as the ingress hands it on."""
    sent = {"host": "demo.localhost:8000", "x-request-id": "the-id", **INGRESS, **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    target = f"/api/v2/imgproxy/demo/{options}?url={quote(url, safe='')}"
    return f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode()


def test_an_image_in_memory_is_answered_at_once_with_the_same_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        app, usage = get.app, get.stage.usage  # type: ignore[attr-defined]
        asked = plain(upstream.url())
        assert app.answer_at_once(asked) is None, "there is nothing yet"
        assert usage.of == {}, "it is counted by who answers"
        await get("w=50", x_request_id="the-id", **INGRESS)
        hit = await get("w=50", x_request_id="the-id", **INGRESS)
        before = usage.of["demo"]
        headers, body = app.answer_at_once(asked)
        assert {name.decode(): value.decode() for name, value in headers} == hit.headers
        assert (body, hit.headers["x-cache"]) == (hit.body, "HIT")
        used = usage.of["demo"]
        counted = used.images - before.images, used.hits - before.hits, used.sent_bytes - before.sent_bytes
        assert counted == (1, 1, len(body))
        forwarded, _ = app.answer_at_once(plain(upstream.url(), "w%3D50", x_forwarded_for="192.0.2.1"))
        assert len(forwarded) == len(headers)
        app.close()
        by_server, *at_once = [
            json.loads(line) for record in caplog.records for line in record.getMessage().splitlines()
        ][-3:]
        for line in at_once:
            assert line.keys() == by_server.keys()
            of_moment = dict.fromkeys(("time", "durationS"))
            assert line | of_moment == by_server | of_moment

    with caplog.at_level("INFO", "broker.access"):
        run(tmp_path, work, key="right")


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ("w=50", {HEADER: "wrong public 127.0.0.1"}),
        ("w=50", {HEADER: ""}),
        ("w=50", {"if-none-match": "*"}),
        ("w=50", {purge_notices.HEADER: write_notice("right", 0)}),
        ("w=100", {}),
        ("w=51", {}),
        ("w=50/more", {}),
        ("w=50#", {}),
        ("w=50é", {}),
    ],
)
def test_what_needs_more_than_the_memory_is_not_answered_at_once(
    tmp_path: Path, options: str, headers: dict[str, str]
) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        app = get.app  # type: ignore[attr-defined]
        await get("w=50", **INGRESS)
        assert app.answer_at_once(plain(upstream.url())) is not None
        used = get.stage.usage.of["demo"]  # type: ignore[attr-defined]
        assert app.answer_at_once(plain(upstream.url(), options, **headers)) is None
        assert app.answer_at_once(plain(upstream.url("/" + 1_024 * "x"))) is None
        assert get.stage.usage.of["demo"] == used  # type: ignore[attr-defined]

    run(tmp_path, work, key="right")


def test_nobody_is_answered_at_once_without_an_ingress(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        await get("w=50")
        assert get.app.answer_at_once(plain(upstream.url())) is None  # type: ignore[attr-defined]

    run(tmp_path, work)


def test_what_was_purged_or_is_old_is_not_answered_at_once(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        stage, asked = get.stage, plain(upstream.url())  # type: ignore[attr-defined]
        answer = get.app.answer_at_once  # type: ignore[attr-defined]
        await get("w=50", **INGRESS)
        stage.purges.add("demo", upstream.url())
        assert answer(asked) is not None, "nobody has told of the purge yet"
        await stage.book.catch_up(1)
        assert answer(asked) is None
        await get("w=50", **INGRESS)
        assert answer(asked) is not None
        stage.clock.later_s += 86_401
        assert answer(asked) is None

    run(tmp_path, work, key="right")


def test_a_signature_is_checked_at_once_too(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        app, clock = get.app, get.stage.clock  # type: ignore[attr-defined]
        clock.stop(at_second=True)
        expires = clock.now_ms() // 1_000 + 60
        path = image_path("demo", "w=50", upstream.url(), signing_key="key", expires=expires)
        asked = f"GET {path} HTTP/1.1\r\nhost: x\r\n{HEADER}: {INGRESS[HEADER]}\r\n\r\n".encode()
        await ask(app, "GET", path, headers=INGRESS)
        headers, _ = app.answer_at_once(asked)
        assert dict(headers)[b"cache-control"] == b"public, max-age=60, s-maxage=60"
        assert app.answer_at_once(asked.replace(b"&expires=", b"&expires=0")) is None
        assert app.answer_at_once(plain(upstream.url())) is None, "it is not signed"
        clock.later_s = 60
        assert app.answer_at_once(asked) is None

    run(tmp_path, work, key="right", accounts=SIGNED)


def test_overload_is_nothing_to_keep(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        app = get.app  # type: ignore[attr-defined]
        assert app.error_cache.decode() == ERROR_CACHE
        await app._get.__self__._workers.close()
        told = await get("w=50")
        assert (told.status, told.headers["cache-control"]) == (503, "no-store")
        assert told.headers["retry-after"] == "1"

    run(tmp_path, work)


def test_what_an_account_takes_is_counted(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        made = await get("w=50")
        await get("w=50")
        await get("w=50", method="HEAD")
        await get("w=50", if_none_match=made.headers["etag"])
        assert (await get("w=51")).status == 422
        used = get.stage.usage.of["demo"]  # type: ignore[attr-defined]
        assert (used.images, used.hits, used.errors, used.fetches) == (5, 3, 1, 1)
        assert used.sent_bytes == 2 * len(made.body)

    run(tmp_path, work)


def test_accounts_that_are_not_there_are_not_counted(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        for name in ("nobody", "nobody-else"):
            app = get.app  # type: ignore[attr-defined]
            told = await ask(app, "GET", f"/api/v2/imgproxy/{name}/-?url=http%3A%2F%2Fa.test")
            assert told.status == 404
        assert get.stage.usage.of == {}  # type: ignore[attr-defined]

    run(tmp_path, work)


SIGNED = {"demo": AccountRules(signing_keys=("key",))}


async def ask_signed(get: Ask, url: str, left_s: int, key: str = "key", **headers: str) -> Told:
    """With the clock stopped, an image whose URL expires in so many seconds."""
    stage = get.stage  # type: ignore[attr-defined]
    path = image_path("demo", "w=50", url, signing_key=key, expires=stage.clock.now_ms() // 1_000 + left_s)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(get.app, "GET", path, headers=sent)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("left_s", "cache"),
    [
        (10_000_000, "public, max-age=5184000, s-maxage=86400"),
        (100_000, "public, max-age=100000, s-maxage=86400"),
        (61, "public, max-age=61, s-maxage=61"),
        (1, "public, max-age=1, s-maxage=1"),
    ],
)
def test_a_signed_image_is_kept_until_its_url_expires(tmp_path: Path, left_s: int, cache: str) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        get.stage.clock.stop(at_second=True)  # type: ignore[attr-defined]
        made = await ask_signed(get, upstream.url(), left_s)
        kept = await ask_signed(get, upstream.url(), left_s)
        known = await ask_signed(get, upstream.url(), left_s, if_none_match=made.headers["etag"])
        assert [told.status for told in (made, kept, known)] == [200, 200, 304]
        assert {told.headers["cache-control"] for told in (made, kept, known)} == {cache}

    run(tmp_path, work, accounts=SIGNED)


def test_a_part_of_a_second_is_none(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        clock = get.stage.clock  # type: ignore[attr-defined]
        clock.stop(at_second=True)
        path = image_path(
            "demo", "w=50", upstream.url(), signing_key="key", expires=clock.now_ms() // 1_000 + 60
        )
        clock.later_s = 0.1
        told = await ask(get.app, "GET", path)  # type: ignore[attr-defined]
        assert told.headers["cache-control"] == "public, max-age=59, s-maxage=59"
        for later_s in (60, 60.1):  # from the second of the expiry on
            clock.later_s = later_s
            told = await ask(get.app, "GET", path)  # type: ignore[attr-defined]
            assert (told.status, told.headers["cache-control"]) == (403, "public, max-age=0")

    run(tmp_path, work, accounts=SIGNED)


def test_the_time_that_an_image_takes_is_taken_off(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        nonlocal clock
        clock = get.stage.clock  # type: ignore[attr-defined]
        clock.stop(at_second=True)
        made = await ask_signed(get, upstream.url(), 60)
        assert made.headers["cache-control"] == "public, max-age=40, s-maxage=40"
        failed = await ask_signed(get, upstream.url("/missing"), 60)
        assert (failed.status, failed.headers["cache-control"]) == (502, "public, max-age=40")

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        clock.later_s += 20
        await send(writer, 404 if seen.path == "/missing" else 200, SMALL)

    clock: LateClock
    run(tmp_path, work, answer, accounts=SIGNED)


@pytest.mark.parametrize(
    ("left_s", "cache"),
    [(600, ERROR_CACHE), (10, "public, max-age=10"), (0, "public, max-age=0"), (-60, "public, max-age=0")],
)
@pytest.mark.parametrize("key", ["key", "wrong"])
def test_an_error_of_a_signed_url_is_kept_until_that_expires(
    tmp_path: Path, left_s: int, cache: str, key: str
) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        get.stage.clock.stop(at_second=True)  # type: ignore[attr-defined]
        for _ in range(2):
            told = await ask_signed(get, upstream.url(), left_s, key)
            assert told.status == (502 if left_s > 0 and key == "key" else 403)
            assert told.headers["cache-control"] == cache

    run(tmp_path, work, reply(404), accounts=SIGNED)
