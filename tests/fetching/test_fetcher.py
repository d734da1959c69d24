"""The fetcher against real servers on loopback, of which 127.0.0.1 counts as public."""

import asyncio
import gc
import gzip
import ssl
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BrokerError, Unavailable
from broker.fetching.bodies import BodyReader
from broker.fetching.errors import (
    ForbiddenUrl,
    InvalidUrl,
    TooLarge,
    UpstreamFailed,
    UpstreamTimeout,
)
from broker.fetching.fetcher import FetchConfig, Fetched, Fetcher, FetchRequest
from broker.fetching.urls import AllowList
from tests.fetching.upstream import (
    Resolver,
    Seen,
    Upstream,
    make_certificate,
    open_fetcher,
    open_upstream,
    reply,
    send,
)

pytestmark = pytest.mark.anyio


async def fetch(fetcher: Fetcher, url: str, **changes: Any) -> Fetched:
    return await fetcher.fetch(FetchRequest(url, **{"total_s": 5.0, "max_bytes": 1000} | changes))


async def ask(upstream: Upstream, path: str = "/", **changes: Any) -> Fetched:
    """Fetch from one upstream, whose port is allowed."""
    async with open_fetcher(upstream.port) as fetcher:
        return await fetch(fetcher, upstream.url(path), **changes)


async def test_reply_comes_whole() -> None:
    async with open_upstream(reply(404, b"no", Content_Type="text/plain", X_Two="a")) as upstream:
        fetched = await ask(upstream, "/a?b=c%20d#e")
    assert (fetched.status, fetched.body, fetched.headers["content-type"]) == (404, b"no", "text/plain")
    assert (upstream.seen[0].method, upstream.seen[0].path) == ("GET", "/a?b=c%20d")
    assert upstream.seen[0].headers["host"] == f"upstream.test:{upstream.port}"


async def test_method_headers_and_body_are_sent() -> None:
    async with open_upstream(reply()) as upstream:
        headers = {
            "X-Key": "k",
            "Host": "evil",
            "Content-Length": "99",
            "Connection": "x",
            "Accept-Encoding": "br",
        }
        await ask(upstream, method="PUT", headers=headers, body=b"{}")
    (seen,) = upstream.seen
    assert (seen.method, seen.body, seen.headers["x-key"]) == ("PUT", b"{}", "k")
    assert (seen.headers["content-length"], seen.headers["accept-encoding"]) == ("2", "gzip, deflate")
    assert seen.headers["host"].startswith("upstream.test")
    assert "connection" not in seen.headers


# -- addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.2",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "fd00::1",
        "0.0.0.0",
    ],
)
async def test_name_of_an_inner_address_is_forbidden(address: str) -> None:
    async with open_upstream(reply()) as upstream:
        async with open_fetcher(upstream.port, resolve=Resolver([address])) as fetcher:
            with pytest.raises(ForbiddenUrl) as caught:
                await fetch(fetcher, upstream.url())
        assert upstream.connections == 0
    assert (caught.value.status, caught.value.name) == (403, "forbidden_url")
    assert address not in str(caught.value.body())
    assert address in (caught.value.log_text or "")


async def test_one_inner_address_among_public_ones_is_forbidden() -> None:
    async with open_upstream(reply()) as upstream:
        async with open_fetcher(upstream.port, resolve=Resolver(["127.0.0.1", "10.0.0.1"])) as fetcher:
            with pytest.raises(ForbiddenUrl):
                await fetch(fetcher, upstream.url())
        assert upstream.connections == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "0x7f.1", "2130706433"]
)
async def test_inner_address_itself_is_forbidden(host: str) -> None:
    async with open_upstream(reply()) as upstream:
        resolver = Resolver()
        async with open_fetcher(upstream.port, resolve=resolver) as fetcher:
            with pytest.raises(ForbiddenUrl):
                await fetch(fetcher, upstream.url(host=host))
        assert (upstream.connections, resolver.asked) == (0, [])


async def test_by_default_loopback_is_forbidden() -> None:
    async with Fetcher() as fetcher:
        for host in ("localhost", "127.0.0.1", "[::1]"):
            with pytest.raises(ForbiddenUrl):
                await fetch(fetcher, f"http://{host}/")


async def test_rebinding_between_check_and_connection_is_impossible() -> None:
    """The name is asked for once a connection; what was checked is what is connected to."""
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
    async with open_upstream(reply()) as upstream:
        async with open_fetcher(upstream.port, resolve=resolver) as fetcher:
            await fetch(fetcher, upstream.url())
            assert resolver.asked == ["upstream.test"]
            with pytest.raises(ForbiddenUrl):
                await fetch(fetcher, upstream.url())
        assert (upstream.connections, len(resolver.asked)) == (1, 2)


async def test_next_address_is_tried_when_one_does_not_answer() -> None:
    async with open_upstream(reply(200, b"ok")) as upstream:
        resolver = Resolver(["127.0.0.3", "127.0.0.1"])
        async with Fetcher(resolve=resolver, judge=lambda _: True, config=_ports(upstream.port)) as fetcher:
            assert (await fetch(fetcher, upstream.url())).body == b"ok"


def _ports(*ports: int) -> FetchConfig:
    return FetchConfig(ports=frozenset(ports))


async def test_other_port_is_forbidden() -> None:
    async with open_upstream(reply()) as upstream:
        async with open_fetcher(80, 443) as fetcher:
            with pytest.raises(ForbiddenUrl):
                await fetch(fetcher, upstream.url())
        assert upstream.connections == 0


async def test_allowed_host_is_open_at_its_port_only() -> None:
    async with open_upstream(reply(200, b"ok")) as one, open_upstream(reply()) as two:
        allow = (f"inner.test:{one.port}",)
        async with open_fetcher(80, allow=allow, resolve=Resolver(["127.0.0.1"])) as fetcher:
            assert (await fetch(fetcher, one.url(host="inner.test"))).body == b"ok"
            for url in (two.url(host="inner.test"), one.url(host="127.0.0.1"), one.url(host="other.test")):
                with pytest.raises(ForbiddenUrl):
                    await fetch(fetcher, url)
        assert two.connections == 0


async def test_allowed_host_may_have_any_address() -> None:
    async with (
        open_upstream(reply(200, b"ok")) as upstream,
        Fetcher(_allowing("inner.test"), resolve=Resolver(["127.0.0.1"])) as fetcher,
    ):
        assert (await fetch(fetcher, upstream.url(host="inner.test"))).body == b"ok"
        with pytest.raises(ForbiddenUrl):
            await fetch(fetcher, upstream.url(host="127.0.0.1"))


def _allowing(*entries: str) -> FetchConfig:
    return FetchConfig(AllowList(entries))


@pytest.mark.parametrize("url", ["ftp://upstream.test/", "http://u:p@upstream.test/", "nothing"])
async def test_malformed_url_is_the_callers_fault(url: str) -> None:
    async with open_fetcher(80) as fetcher:
        with pytest.raises(InvalidUrl) as caught:
            await fetch(fetcher, url)
    assert caught.value.status == 400


async def test_unknown_name_is_an_upstream_failure() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    async with Fetcher(resolve=resolve) as fetcher:
        with pytest.raises(UpstreamFailed):
            await fetch(fetcher, "http://nowhere.test/")


# -- redirects


def chain(length: int) -> Any:
    """Redirects `length` times, then answers with the number of hops."""

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        hop = int(seen.path.strip("/") or 0)
        if hop < length:
            await send(writer, 302, b"moved", Location=f"/{hop + 1}")
        else:
            await send(writer, 200, str(hop).encode())

    return answer


@pytest.mark.parametrize("length", [0, 1, 5])
async def test_up_to_five_redirects_are_followed(length: int) -> None:
    async with open_upstream(chain(length)) as upstream:
        fetched = await ask(upstream)
    assert fetched.body == str(length).encode()
    assert fetched.url == upstream.url(f"/{length}" if length else "/")


async def test_sixth_redirect_is_an_upstream_failure() -> None:
    async with open_upstream(chain(6)) as upstream:
        with pytest.raises(UpstreamFailed):
            await ask(upstream)
    assert len(upstream.seen) == 6


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "//10.0.0.1/",
        "http://2130706433/",
        "file:///etc/passwd",
        "ftp://upstream.test/",
        "http://u:p@upstream.test/",
        "http://upstream.test:22/",
        "http://[x",
        "http://user@127.0.0.2/",
    ],
)
async def test_redirect_to_a_refused_place_is_forbidden(location: str) -> None:
    async with open_upstream(reply(302, Location=location)) as upstream:
        with pytest.raises(ForbiddenUrl):
            await ask(upstream)
        assert len(upstream.seen) == 1


async def test_redirect_to_a_name_that_turns_inner_is_forbidden() -> None:
    async with (
        open_upstream(chain(1)) as upstream,
        open_fetcher(upstream.port, resolve=Resolver(["127.0.0.1"], ["10.0.0.1"])) as fetcher,
    ):
        with pytest.raises(ForbiddenUrl):
            await fetch(fetcher, upstream.url())


async def test_redirect_without_a_location_is_a_reply() -> None:
    async with open_upstream(reply(304)) as upstream:
        assert (await ask(upstream)).status == 304
    async with open_upstream(reply(302, b"x")) as upstream:
        assert (await ask(upstream)).body == b"x"


async def test_secrets_stay_with_their_server() -> None:
    headers = {"Authorization": "secret", "X-Api-Key": "secret", "Cookie": "secret", "Accept": "a/b"}
    async with (
        open_upstream(reply()) as two,
        open_upstream(reply(307, Location=two.url())) as one,
        open_fetcher(one.port, two.port) as fetcher,
    ):
        await fetch(fetcher, one.url(), headers=headers)
    assert one.seen[0].headers["x-api-key"] == "secret"
    assert two.seen[0].headers["accept"] == "a/b"
    assert "secret" not in two.seen[0].headers.values()


async def test_headers_stay_within_one_server() -> None:
    async with open_upstream(chain(1)) as upstream:
        await ask(upstream, headers={"X-Api-Key": "secret"})
    assert [seen.headers["x-api-key"] for seen in upstream.seen] == ["secret", "secret"]


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (301, "PUT", "PUT"),
        (302, "DELETE", "DELETE"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ],
)
async def test_method_over_a_redirect(status: int, method: str, becomes: str) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await (send(writer, status, Location="/to") if seen.path == "/" else send(writer))

    async with open_upstream(answer) as upstream:
        await ask(upstream, method=method, body=b"{}", headers={"Content-Type": "application/json"})
    first, second = upstream.seen
    assert (first.method, second.method, first.body) == (method, becomes, b"{}")
    assert second.body == (b"" if becomes == "GET" else b"{}")
    assert ("content-type" in second.headers) == (becomes != "GET")


# -- bytes


@pytest.mark.parametrize(("size", "fits"), [(0, True), (999, True), (1000, True), (1001, False)])
@pytest.mark.parametrize("told", [True, False])
async def test_bytes_are_bounded(size: int, fits: bool, told: bool) -> None:
    body = b"x" * size

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, body, Content_Length=str(size) if told else "")

    async with open_upstream(answer) as upstream:
        if fits:
            assert (await ask(upstream)).body == body
        else:
            with pytest.raises(TooLarge) as caught:
                await ask(upstream)
            assert caught.value.status == 502


async def test_endless_body_is_cut_off() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    async with open_upstream(answer) as upstream:
        with pytest.raises(TooLarge):
            await ask(upstream)


PACKED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "GZIP": lambda body: gzip.compress(body[:300]) + gzip.compress(body[300:]),
    "Deflate": lambda body: zlib.compress(body, wbits=-15),
}


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001])
async def test_unpacked_bytes_are_bounded(encoding: str, size: int) -> None:
    body = b"x" * size
    async with open_upstream(reply(200, PACKED[encoding](body), Content_Encoding=encoding)) as upstream:
        if size <= 1000:
            assert (await ask(upstream)).body == body
        else:
            with pytest.raises(TooLarge):
                await ask(upstream)


async def test_packed_bomb_is_noticed_at_the_limit() -> None:
    bomb = gzip.compress(bytes(200 << 20), compresslevel=1)

    async with open_upstream(reply(200, bomb, Content_Encoding="gzip")) as upstream:
        tracemalloc.start()
        try:
            with pytest.raises(TooLarge):
                await ask(upstream, max_bytes=4 << 20)
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"x"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"x"))),
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(b"x" * 500)[:-5]),
        ("gzip", gzip.compress(b"x") + b"rest"),
        ("deflate", zlib.compress(b"x") + b"rest"),
        ("deflate", zlib.compress(b"x" * 500)[:-2]),
    ],
)
async def test_broken_packing_is_an_upstream_failure(encoding: str, body: bytes) -> None:
    async with open_upstream(reply(200, body, Content_Encoding=encoding)) as upstream:
        with pytest.raises(UpstreamFailed):
            await ask(upstream)


# -- time


async def test_slow_drip_ends_in_time() -> None:
    """Every part comes at once after the one before, so only the whole is slow."""

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with open_upstream(answer) as upstream:
        with pytest.raises(UpstreamTimeout) as caught:
            await ask(upstream, total_s=0.4)
    assert caught.value.status == 504


async def test_time_counts_over_all_redirects() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await send(writer, 302, Location=f"{seen.path}x")

    async with open_upstream(answer) as upstream:
        with pytest.raises(UpstreamTimeout):
            await ask(upstream, total_s=0.5)
    assert 1 < len(upstream.seen) < 6


async def test_slow_resolver_ends_in_time() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    async with Fetcher(resolve=resolve) as fetcher:
        with pytest.raises(UpstreamTimeout):
            await fetch(fetcher, "http://slow.test/", total_s=0.1)


def _refuse(_: int) -> None:
    raise Unavailable("no room")


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/whole", {"count": _refuse}),
        ("/whole", {"max_bytes": 40_000}),
        ("/packed", {}),
        ("/half", {}),
        ("/slow", {"total_s": 0.2}),
        ("/slow", {"cancelled": True}),
    ],
)
async def test_what_has_come_of_a_failed_fetch_goes_with_its_task(path: str, changes: dict[str, Any]) -> None:
    """An error holds the frames that it went through; a replica collects garbage seldom."""

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        heads = {
            "/whole": "Connection: close",
            "/packed": "Content-Length: 50000\r\nContent-Encoding: gzip",
        }
        head = heads.get(seen.path, "Content-Length: 100000")
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + bytes(50_000))
        await writer.drain()
        if seen.path == "/slow":
            await asyncio.sleep(30)

    is_cancelled = "cancelled" in changes
    options = {"max_bytes": 200_000} | {name: value for name, value in changes.items() if name != "cancelled"}
    async with open_upstream(answer) as upstream, open_fetcher(upstream.port) as fetcher:

        async def fail() -> None:
            fetching = asyncio.create_task(fetch(fetcher, upstream.url(path), **options))
            if is_cancelled:
                await asyncio.sleep(0.2)
                assert len(_readers()) == 1
                fetching.cancel()
            try:
                await fetching
            except (BrokerError, asyncio.CancelledError):
                return
            finally:
                del fetching
            raise AssertionError("it was fetched")

        gc.collect()
        gc.disable()
        try:
            await fail()
            await asyncio.sleep(0)
            assert _readers() == []
        finally:
            gc.enable()


def _readers() -> list[BodyReader]:
    return [found for found in gc.get_objects() if isinstance(found, BodyReader)]


async def test_cancelling_is_no_timeout() -> None:
    async def answer(_seen: Seen, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(60)

    asked = asyncio.Event()
    async with open_upstream(answer) as upstream:
        fetching = asyncio.create_task(ask(upstream))
        await asked.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching


# -- broken servers


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nxx",
        b"HTTP/1.1 99999 X\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_broken_server_is_an_upstream_failure(raw: bytes) -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    async with open_upstream(answer) as upstream:
        with pytest.raises(UpstreamFailed) as caught:
            await ask(upstream)
    assert caught.value.status == 502


async def test_closed_port_is_an_upstream_failure() -> None:
    async with open_upstream(reply()) as upstream:
        pass
    with pytest.raises(UpstreamFailed):
        await ask(upstream)


# -- TLS


def trusting(file: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def serving(file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def test_certificate_and_name_are_those_of_the_url(tmp_path: Path) -> None:
    file = make_certificate(tmp_path, "upstream.test")
    async with (
        open_upstream(reply(200, b"ok"), serving(file)) as upstream,
        open_fetcher(upstream.port, tls=trusting(file)) as fetcher,
    ):
        assert (await fetch(fetcher, upstream.url(scheme="https"))).body == b"ok"
        with pytest.raises(UpstreamFailed):
            await fetch(fetcher, upstream.url(scheme="https", host="other.test"))
    assert upstream.names == ["upstream.test", "other.test"]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_reply_names_the_servers_over_which_it_came(tmp_path: Path, scheme: str) -> None:
    file = make_certificate(tmp_path, "upstream.test")

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, 302 if seen.path == "/away" else 200, Location="/here")

    async with (
        open_upstream(answer, serving(file) if scheme == "https" else None) as upstream,
        open_fetcher(upstream.port, tls=trusting(file)) as fetcher,
    ):
        fetched = await fetch(fetcher, upstream.url("/away", scheme=scheme))
        assert fetched.hops == (("upstream.test", upstream.port, "127.0.0.1"),) * 2
        assert fetcher.allows(fetched.hops)
        assert not fetcher.allows([fetched.hops[0]._replace(address="10.0.0.1")])
        assert not fetcher.allows([*fetched.hops, fetched.hops[0]._replace(port=22)])


async def test_unknown_authority_is_an_upstream_failure(tmp_path: Path) -> None:
    file = make_certificate(tmp_path, "upstream.test")
    async with open_upstream(reply(), serving(file)) as upstream, open_fetcher(upstream.port) as fetcher:
        with pytest.raises(UpstreamFailed):
            await fetch(fetcher, upstream.url(scheme="https"))
    assert upstream.seen == []


async def test_authorities_of_the_environment_are_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_certificate(tmp_path, "upstream.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with (
        open_upstream(reply(200, b"ok"), serving(file)) as upstream,
        open_fetcher(upstream.port) as fetcher,
    ):
        assert (await fetch(fetcher, upstream.url(scheme="https"))).body == b"ok"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_upstream(reply()) as proxy, open_upstream(reply(200, b"ok")) as upstream:
        monkeypatch.setenv("HTTP_PROXY", proxy.url(host="127.0.0.1"))
        monkeypatch.setenv("ALL_PROXY", proxy.url(host="127.0.0.1"))
        assert (await ask(upstream)).body == b"ok"
    assert proxy.connections == 0


@pytest.mark.parametrize("kind", [ForbiddenUrl, InvalidUrl, UpstreamFailed, TooLarge, UpstreamTimeout])
def test_kinds_and_their_status(kind: type[BrokerError]) -> None:
    expected = {ForbiddenUrl: 403, InvalidUrl: 400, UpstreamFailed: 502, TooLarge: 502, UpstreamTimeout: 504}
    assert kind.status == expected[kind]
