"""The page on caches has the headers that responses have."""

import re
from pathlib import Path

import httpx
import pytest

from tests.fetching.upstream import Upstream
from tests.product import Product
from tests.rest.test_images import Ask, run

PAGE = Path(__file__).parents[2] / "docs" / "caching.md"
_ROW = re.compile(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \| ([^|]+) \|$", re.MULTILINE)
ASKED = {"title": "Who wins?", "options": ["a", "b"]}
ENDED_MS = 12_001  # BROKER_PUBLISH_TIMEOUT_S and two seconds
RESULTS = "/api/v1/responses/{accountId}/{responseName}/results"
EVENTS = "/api/v1/programs/{programId}/events"
VALUE = "/api/v1/storage/{projectId}/{valueId}"
IMAGES = "/api/v2/imgproxy/{accountId}/{options}?url={source}"
NO_IMAGE = "/api/v2/imgproxy/{accountId}/{options}?url={nothing}"


def rows() -> list[tuple[str, str, str]]:
    """Path, `Cache-Control` and key, in the order of the page."""
    return _ROW.findall(PAGE.read_text())


def told(path: str) -> list[str]:
    """What the page says of this path."""
    return [cache for known, cache, _ in rows() if known == path]


def assert_cacheable(answer: httpx.Response) -> None:
    """Nothing of a response makes it one caller's."""
    assert "vary" not in answer.headers
    assert "set-cookie" not in answer.headers
    assert answer.headers.get("access-control-allow-origin", "*") == "*"


def test_the_page_has_the_paths_that_are_compared() -> None:
    compared = {RESULTS, VALUE, IMAGES, NO_IMAGE, "/api/v1/connect", EVENTS}
    compared |= {f"{EVENTS}?to={{time}}", f"{EVENTS}?to={{now}}"}
    compared.add("/api/v1/programs/{privateId}/events?to={time}")
    assert {path for path, _, _ in rows()} == compared
    for path, cache, key in rows():
        assert ("path" in key) == cache.startswith("public"), path
        assert ("host" in key) == (cache.startswith("public") and "{accountId}" not in path), path


@pytest.mark.anyio
@pytest.mark.postgres
async def test_live_results(product: Product) -> None:
    await product.make_program("cached")
    metadata = ASKED | {"closes": product.clock.now_ms() + 600_000}
    (poll,) = await product.publish("cached", {"event": "Poll#show", "metadata": metadata})
    found = []
    async with product.door(None, Origin="https://page.example", Cookie="a=b") as door:
        for forward_ms in (0, 600_000 + ENDED_MS):
            product.clock.forward_ms += forward_ms
            query = {"programId": "cached", "contextId": poll["id"]}
            answer = await door.get("/responses/demo/whoWins/results", params=query)
            assert_cacheable(answer)
            found.append(answer.headers["cache-control"])
        assert (await door.get("/responses/demo/whoWins/results?other=1")).status_code == 400
    assert found == told(RESULTS)


@pytest.mark.anyio
@pytest.mark.postgres
async def test_history_values_and_where_to_connect(product: Product) -> None:
    await product.make_program("open")
    await product.make_program("closed", access="private")
    now = product.clock.now_ms()
    async with product.door("admin") as door:
        (await door.post("/projects", json={"id": "kept", "name": "n"})).raise_for_status()
        (await door.post("/storage/kept", json={"id": "a", "metadata": {}})).raise_for_status()
        for path, described in (
            (f"/programs/open/events?to={now - 61_000}", f"{EVENTS}?to={{time}}"),
            (f"/programs/open/events?to={now}", f"{EVENTS}?to={{now}}"),
            (
                f"/programs/closed/events?to={now - 61_000}",
                "/api/v1/programs/{privateId}/events?to={time}",
            ),
            ("/programs/open/events", EVENTS),
            ("/storage/kept/a", VALUE),
            ("/connect", "/api/v1/connect"),
        ):
            answer = await door.get(path)
            assert [answer.headers["cache-control"]] == told(described), path
            if "public" in answer.headers["cache-control"]:
                assert_cacheable(answer)


def test_images(tmp_path: Path) -> None:
    async def work(get: Ask, upstream: Upstream) -> None:
        found, missing = await get("w=50"), await get("w=50", "http://nowhere.invalid/a.png")
        assert [found.headers["cache-control"]] == told(IMAGES)
        assert [missing.headers["cache-control"]] == told(NO_IMAGE)
        assert not {"vary", "set-cookie"} & found.headers.keys()

    run(tmp_path, work)
