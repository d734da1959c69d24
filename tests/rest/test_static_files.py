"""Built pages over HTTP: types, compression, caching, and nothing outside the folder."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from broker.errors import NotFound
from broker.rest.reply import Exchange
from broker.rest.static_files import StaticFiles

pytestmark = pytest.mark.anyio
PAGE = b"<!doctype html><title>A page</title>" + b"<p>of some length</p>" * 20


class Sent:
    """What one exchange sent."""

    def __init__(self, known: str | None = None) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.exchange = Exchange(self._send, self._receive, "id", is_head=False, if_none_match=known)

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]

    async def _receive(self) -> dict[str, Any]:
        raise AssertionError("nothing is read")


@pytest.fixture
def files(tmp_path: Path) -> StaticFiles:
    folder = tmp_path / "pages"
    (folder / "inner").mkdir(parents=True)
    (folder / "index.html").write_bytes(PAGE)
    (folder / "inner" / "index.html").write_bytes(b"<p>inner</p>")
    (folder / "main-ABCD1234.js").write_text("let a = 1;" * 50)
    (folder / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "secret").write_text("not to be seen")
    return StaticFiles(folder, {"Content-Security-Policy": "default-src 'self'"})


async def get(files: StaticFiles, path: str, known: str | None = None, **headers: bytes) -> Sent:
    sent = Sent(known)
    await files.serve(
        path, {name.replace("_", "-").encode(): value for name, value in headers.items()}, sent.exchange
    )
    return sent


@pytest.mark.parametrize(
    ("path", "media_type", "cache"),
    [
        ("", b"text/html; charset=utf-8", b"no-cache"),
        ("/", b"text/html; charset=utf-8", b"no-cache"),
        ("index.html", b"text/html; charset=utf-8", b"no-cache"),
        ("inner", b"text/html; charset=utf-8", b"no-cache"),
        ("inner/", b"text/html; charset=utf-8", b"no-cache"),
        ("main-ABCD1234.js", b"text/javascript; charset=utf-8", b"public, max-age=31536000, immutable"),
        ("dot.png", b"image/png", b"no-cache"),
    ],
)
async def test_files_have_their_type_and_how_long_they_are_kept(
    files: StaticFiles, path: str, media_type: bytes, cache: bytes
) -> None:
    sent = await get(files, path)
    assert sent.status == 200
    assert sent.headers[b"content-type"] == media_type
    assert sent.headers[b"cache-control"] == cache
    assert sent.headers[b"content-security-policy"] == b"default-src 'self'"


async def test_text_is_compressed_for_those_who_take_it(files: StaticFiles) -> None:
    plain = await get(files, "")
    packed = await get(files, "", accept_encoding=b"br, gzip")
    assert plain.body == PAGE
    assert len(packed.body) < len(plain.body)
    assert gzip.decompress(packed.body) == PAGE
    assert packed.headers[b"content-encoding"] == b"gzip"
    assert packed.headers[b"vary"] == plain.headers[b"vary"] == b"accept-encoding"
    assert packed.headers[b"etag"] != plain.headers[b"etag"]


@pytest.mark.parametrize(
    "codings", [b"gzip;q=0", b"br, gzip; q=0.0", b"identity", b"x-gzipped", b"gzip;q=nan"]
)
async def test_who_takes_no_gzip_gets_none(files: StaticFiles, codings: bytes) -> None:
    plain = await get(files, "", accept_encoding=codings)
    assert plain.body == PAGE
    assert b"content-encoding" not in plain.headers


async def test_who_has_it_already_gets_304(files: StaticFiles) -> None:
    etag = (await get(files, "")).headers[b"etag"].decode()
    assert ((again := await get(files, "", known=etag)).status, again.body) == (304, b"")
    assert (await get(files, "", known='"another"')).status == 200


@pytest.mark.parametrize(
    "path", ["../secret", "inner/../../secret", "nothing", "..", "inner//index.html", "%2e%2e/secret"]
)
async def test_nothing_else_is_served(files: StaticFiles, path: str) -> None:
    with pytest.raises(NotFound):
        await get(files, path)


async def test_without_a_build_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await get(StaticFiles(tmp_path / "absent", {}), "")
