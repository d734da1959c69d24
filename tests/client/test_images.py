"""Images by the SDK: their URLs, and the real application behind them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.client import ApiError, AsyncClient, Client, FaceBox, ProtocolError
from broker.clock import SystemClock
from broker.demo.serving import served
from broker.ids import IdSource
from broker.image_urls import sign_url
from broker.rest.images import ImageApp
from broker.settings import Settings
from tests.fetching.upstream import Answer, Upstream, open_fetcher, open_upstream, reply
from tests.images.samples import gradient
from tests.images.stage import open_stage

IMAGE = bytes(gradient(160, 120).pngsave_buffer())
PAGE = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
SOURCE = "https://cdn.example.com/a b.png?x=1&y=2"


def test_a_url_names_the_account_the_options_and_the_source() -> None:
    with Client("http://arena.localhost:8000") as client:
        assert client.images.build_url(SOURCE, "w=400,h=300,fit=fill:top") == (
            "http://arena.localhost:8000/api/v2/imgproxy/arena/w=400,h=300,fit=fill:top"
            "?url=https%3A%2F%2Fcdn.example.com%2Fa+b.png%3Fx%3D1%26y%3D2"
        )


def test_a_signed_url_has_its_expiry() -> None:
    with Client("http://localhost:8000", account="arena") as client:
        made = client.images.build_url(SOURCE, signing_key="secret", expires=1_893_456_000)
        signature = sign_url("secret", "arena", "-", SOURCE, "1893456000")
        assert made.endswith(f"&expires=1893456000&signature={signature}")
        with pytest.raises(ValueError, match="go together"):
            client.images.build_url(SOURCE, signing_key="secret")


@asynccontextmanager
async def opened(directory: Path, answer: Answer) -> AsyncIterator[tuple[AsyncClient, Upstream]]:
    """A client of the real application for images, and where its sources are."""
    async with (
        open_upstream(answer) as upstream,
        open_stage(directory, open_fetcher(upstream.port)) as stage,
    ):
        clock = SystemClock()
        app = ImageApp(
            Settings(),
            clock,
            IdSource(clock),
            stage.service.get,
            stage.service.find,
            stage.service.know_purges,
            stage.usage,
        )
        async with (
            served("images", app) as host,
            AsyncClient(f"http://{host}", account="demo", token="a-token") as client,
        ):
            yield client, upstream
        app.close()


@pytest.mark.anyio
async def test_images_are_fetched_and_described(tmp_path: Path) -> None:
    async with opened(tmp_path, reply(body=IMAGE)) as (client, upstream):
        source = upstream.url("/a b.png?x=1&y=2")
        made = await client.images.fetch(source, "w=50,f=webp")
        assert (made.media_type, made.body[8:12], made.is_hit) == ("image/webp", b"WEBP", False)
        assert (await client.images.fetch(source, "f=webp,w=50")).is_hit
        told = await client.images.describe(source)
        assert (told.media_type, told.width, told.height, told.frames) == ("image/png", 160, 120, 1)
        assert told.faces is None, "there is no model"
        assert upstream.seen[0].path == "/a%20b.png?x=1&y=2"


@pytest.mark.anyio
async def test_what_the_broker_remembers_is_not_tried_again(tmp_path: Path) -> None:
    async with opened(tmp_path, reply(404)) as (client, upstream):
        for options, status, name in (("-", 502, "upstream_failed"), ("w=51", 422, "invalid_options")):
            async with asyncio.timeout(20):
                with pytest.raises(ApiError) as refused:
                    await client.images.fetch(upstream.url(), options)
            assert (refused.value.status, refused.value.name) == (status, name)
        with pytest.raises(ApiError, match="upstream_failed"):
            await client.images.describe(upstream.url())


@pytest.mark.anyio
async def test_the_sample_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sample,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "describe" in text)
    async with opened(tmp_path, reply(body=IMAGE)) as (client, upstream):
        host = str(client.images.build_url(upstream.url())).partition("/api")[0]
        program = sample.replace("http://demo.localhost:8000", host)
        program = program.replace("https://cdn.example.com/players/kim.jpg", upstream.url("/kim.png"))
        await asyncio.to_thread(exec, compile(program, "the sample", "exec"), {})
    told, url = capsys.readouterr().out.splitlines()
    assert told.startswith("image/png 160 120 #")
    assert "/api/v2/imgproxy/demo/w=400,h=400,fit=face,f=webp?url=" in url


def test_a_face_has_its_landmarks() -> None:
    raw = {"left": 1, "top": 2.5, "width": 3, "height": 4, "score": 0.9, "landmarks": [[1, 2], [3.5, 4]]}
    assert FaceBox.parse(raw) == FaceBox(1, 2.5, 3, 4, 0.9, ((1, 2), (3.5, 4)))
    with pytest.raises(ProtocolError):
        FaceBox.parse(raw | {"landmarks": None})
