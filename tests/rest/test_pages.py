"""What stands beside the operations at the HTTP door, and the operations that tell how the server is."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest

import broker
from broker import _native
from broker._native import BUILT_S
from broker.clock import SystemClock, to_datetime
from broker.domain.values import format_time
from broker.image_urls import PREFIX
from broker.metrics import catalogue, counts
from broker.metrics.counts import Sample
from broker.metrics.exporter import Exporter
from broker.operations.image_state import CONDUCTOR
from broker.rest.sites import SITES
from broker.rest.start_page import ENTRIES
from tests.product import Product
from tests.rest.support import field

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


# -- pages


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs"])
async def test_pages_at_the_root(product: Product, path: str) -> None:
    async with product.door(None) as door:
        answer = await door.get(f"http://demo.localhost{path}")
        assert answer.status_code == 200
        assert (await door.head(f"http://demo.localhost{path}")).content == b""
        assert (await door.post(f"http://demo.localhost{path}")).status_code == 405


@pytest.mark.parametrize(
    "path", ["/api%2Fv2/imgproxy/demo/-", "/api/v2%2Fimgproxy", "/%61pi/v2/imgproxy/demo/-"]
)
async def test_only_the_path_that_leads_to_images_says_that_they_are_away(
    product: Product, path: str
) -> None:
    async with product.door(None) as door:
        assert (await door.get(f"http://demo.localhost{path}")).status_code == 404
        away = await door.get("http://demo.localhost/api/v2/imgproxy/demo/-")
        assert (away.status_code, "retry-after" in away.headers) == (503, True)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "text/plain; charset=utf-8"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8"),
        ("application/json", "application/json"),
    ],
)
async def test_the_start_page_has_the_form_that_the_caller_takes(
    product: Product, accept: str, media_type: str
) -> None:
    async with product.door(None, Accept=accept) as door:
        answer = await door.get("http://demo.localhost/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.headers["vary"] == "accept"
        assert [entry.path for entry in ENTRIES if entry.path not in answer.text] == []
        assert (await door.head("http://demo.localhost/")).content == b""
        assert (await door.post("http://demo.localhost/")).status_code == 405
        refused = await door.get("http://demo.localhost/", headers={"Accept": "image/png"})
        assert refused.status_code == 406


async def test_what_the_start_page_names_is_there(product: Product) -> None:
    named = set(await _links(product))
    assert {f"/{site}/" for site in SITES} <= named, "each site has its place"
    async with product.door(None) as door:
        for path in named:
            answer = await door.get(f"http://demo.localhost{path}")
            assert answer.status_code == 200, path


async def test_the_start_page_may_do_nothing_but_look_well(product: Product) -> None:
    async with product.door(None, Accept="text/html") as door:
        answer = await door.get("http://demo.localhost/")
    (style,) = re.findall(r"<style>(.*)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.partition("</style>")[2]


async def _links(product: Product) -> list[str]:
    async with product.door(None, Accept="text/html") as door:
        return re.findall(r'href="([^"]+)"', (await door.get("http://demo.localhost/")).text)


async def test_published_keys_verify_our_tokens(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("http://demo.localhost/.well-known/jwks.json")
    assert answer.headers["cache-control"] == "public, max-age=60"
    token = product.tokens["user"]
    key = jwt.PyJWKSet.from_dict(answer.json())[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["EdDSA"])
    assert (claims["acc"], claims["role"]) == ("demo", "user")


async def test_ready_means_every_part(product: Product) -> None:
    product.health["owners"] = "no owner answers"
    try:
        async with product.door(None) as door:
            answer = await door.get("http://localhost/readyz")
    finally:
        product.health["owners"] = "ok"
    assert answer.status_code == 503
    assert answer.json()["parts"]["owners"] == "no owner answers"


async def test_the_state_of_images_is_told_and_decides_nothing(product: Product, tmp_path: Path) -> None:
    told, figures = [], list[Sample]()
    exporter = Exporter(CONDUCTOR, CONDUCTOR, tmp_path, SystemClock(), [lambda: iter(figures)])
    await exporter.start()
    async with product.with_settings(data_dir=tmp_path).door(None) as door:
        for values in ((), (0,), (1,)):
            figures[:] = [Sample(catalogue.IMAGES_UP.name, (), value) for value in values]
            answer = await door.get("http://localhost/readyz")
            told.append((answer.status_code, answer.json()["images"]))
    await exporter.close()
    assert told == [(200, "unknown"), (200, "not made at present; the conductor's log says why"), (200, "ok")]


async def test_images_that_nobody_makes_are_unavailable(product: Product) -> None:
    """The ingress leads to them once they have been started; until then what asks for them comes here."""
    async with product.door(None) as door:
        answer = await door.get(f"http://localhost{PREFIX}/demo/w=400?url=http://a.test/b.png")
        assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert (await door.get(f"http://localhost{PREFIX}x")).status_code == 404


async def test_models_that_find_faces_are_told_to_operators(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("http://localhost/readyz")
    assert answer.json()["faces"] == {"models": "built, ssd", "providers": []}


async def test_operations_are_counted_without_accounts(product: Product) -> None:
    async with product.door() as door:
        await door.get("/version")
        await door.get("/programs/none")
    counted = {
        tuple(sample.labels) for sample in counts.samples() if sample.name == catalogue.OPERATIONS.name
    }
    assert {("getVersion", "ok"), ("getProgram", "not_found")} <= counted
    assert "demo" not in str(list(counts.samples()))


async def test_the_reference_loads_nothing_from_elsewhere(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("http://localhost/docs")
    assert "https://" not in answer.text
    assert "http://" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_the_reference_shows_both_documents(product: Product) -> None:
    """All that it fetches is there, and its style and script are those that its policy lets run."""
    async with product.door(None) as door:
        answer = await door.get("http://localhost/docs")
        for document in re.findall(r'load\("([^"]+)"\)', answer.text):
            assert (await door.get(f"/{document}")).json()["info"]["title"]
    assert re.findall(r'load\("([^"]+)"\)', answer.text) == ["openapi.json", "asyncapi.json"]
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*)</{kind}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in answer.headers["content-security-policy"]


async def test_lifespan_and_websockets(product: Product) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    await product.app({"type": "lifespan"}, receive, send)
    messages.append({"type": "websocket.connect"})
    await product.app({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]


async def test_requests_are_logged_without_their_secrets(
    product: Product, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="broker.access"):
        async with product.door() as door:
            await door.get("/programs/filter?search=secret", headers={"X-Request-Id": "logged"})
        product.app.close()
    line = orjson.loads(caplog.messages[-1].splitlines()[-1])
    assert line["requestId"] == "logged"
    assert line["status"] == 200
    assert line["path"] == "/api/v1/programs/filter"
    assert "secret" not in caplog.text
    assert product.tokens["admin"] not in caplog.text


# -- status


async def test_version(product: Product) -> None:
    async with product.door(None) as door:
        body = (await door.get("/version")).json()
    assert body == {
        "version": broker.__version__,
        "buildNumber": f"{to_datetime(BUILT_S * 1000):%Y%m%d%H%M%S}",
        "buildDate": format_time(to_datetime(BUILT_S * 1000)),
    }


def test_the_build_is_stamped_when_it_is_made() -> None:
    """Not when it is installed or copied: the file may be younger, and is never much older than its stamp."""
    made_s = Path(_native.__file__).stat().st_mtime
    assert 1_700_000_000 < BUILT_S <= made_s + 1


async def test_ping_needs_a_token(product: Product) -> None:
    async with product.door(None) as door:
        assert (await door.post("/ping")).status_code == 401
    async with product.door("client") as door:
        answer = await door.post("/ping", json={})
        assert (await door.post("/ping", json={"x": 1})).status_code == 400
    assert abs(answer.json()["current_time"] - product.clock.now_ms()) < 5000


@pytest.mark.parametrize("time", [0, -(2**53), 2**53])
async def test_servertime_echoes(product: Product, time: int) -> None:
    async with product.door(None) as door:
        body = (await door.post("/servertime", json={"requestTime": time})).json()
    assert body["requestTime"] == time
    assert abs(body["serverTime"] - product.clock.now_ms()) < 5000


@pytest.mark.parametrize("time", [2**53 + 1, -(2**53) - 1, 1.5, "1", True, 10**30])
async def test_servertime_takes_exact_integers_only(product: Product, time: object) -> None:
    async with product.door(None) as door:
        answer = await door.post("/servertime", content=orjson.dumps({"requestTime": time}) if time != 10**30
                                 else b'{"requestTime":1' + b"0" * 30 + b"}",
                                 headers={"Content-Type": "application/json"})  # fmt: skip
    assert answer.status_code == 400
    assert field(answer) == "requestTime"


async def test_servertime_without_a_time_has_none(product: Product) -> None:
    async with product.door(None) as door:
        for body in ({}, {"requestTime": None}):
            assert (await door.post("/servertime", json=body)).json().keys() == {"serverTime"}
