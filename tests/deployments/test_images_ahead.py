"""Images made ahead and forgotten again, and what they took, through the real ingress."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest

from broker.cli.main import run
from broker.client import ApiError, AsyncClient, Client, InsufficientScope
from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAM = "with-images"


@pytest.fixture(scope="module")
def door(instance: Instance, image_server: ImageServer) -> Iterator[ImageDoor]:
    with closing(ImageDoor(instance, image_server)) as door:
        yield door


@pytest.fixture(scope="module")
def client(instance: Instance) -> Iterator[Client]:
    with Client(instance.url, username="admin", password=PASSWORD) as client:
        client.programs.create(PROGRAM, "With images")
        yield client


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_published_events_images_are_there_before_the_first_viewer(
    instance: Instance, client: Client, door: ImageDoor, image_server: ImageServer
) -> None:
    photos = [image_server.url(f"/a.png?published-{number}") for number in range(3)]
    client.publish(PROGRAM, "Lineup#show", {"photo": photos[0], "text": image_server.url("/a.png?text")})
    event = client.publish(PROGRAM, "Lineup#show", {"players": [{"photo": photos[1]}, {"name": "Kim"}]})
    client.events.update(PROGRAM, event.id, metadata={"players": [{"photo": photos[2]}]})
    until(lambda: all(f"/a.png?published-{number}" in image_server.seen for number in range(3)))
    until(
        lambda: all(
            door.get(o, url=p).headers.get("x-cache") == "HIT"
            for p in photos
            for o in ("w=50", "f=webp,w=100")
        )
    )
    assert image_server.seen.count("/a.png?published-0") == 1
    assert "/a.png?text" not in image_server.seen
    lines = httpx.get(f"{instance.ops_url}/metrics", timeout=30).text.splitlines()
    made = [line for line in lines if line.startswith("broker_image_warmings_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in made if 'outcome="made"' in line) >= 6


def test_an_event_published_over_websocket_is_as_good(
    instance: Instance, client: Client, image_server: ImageServer
) -> None:
    async def publish() -> None:
        async with (
            AsyncClient(instance.url, username="admin", password=PASSWORD) as connecting,
            connecting.socket() as socket,
        ):
            metadata = {"photo": image_server.url("/b.png?socket")}
            params = {"programId": PROGRAM, "event": "Card#show", "metadata": metadata}
            await socket.call("producer", params)

    asyncio.run(publish())
    until(lambda: "/b.png?socket" in image_server.seen)


def test_a_purged_source_is_fetched_again_and_its_neighbour_is_not(
    instance: Instance, door: ImageDoor, image_server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    login = ["--url", instance.url, "--username", "admin"]
    for path in ("/a.png?purged", "/b.png?stays"):
        assert door.get("w=50", path).headers["x-cache"] == "MISS"
    assert run(["images", "purge", image_server.url("/a.png?purged"), *login]) == 0
    until(lambda: door.get("w=50", "/a.png?purged").headers["x-cache"] == "MISS")
    assert image_server.seen.count("/a.png?purged") == 2
    assert door.get("w=50", "/b.png?stays").headers["x-cache"] == "HIT"
    assert run(["images", "purge", "--all", *login]) == 0
    until(lambda: door.get("w=50", "/b.png?stays").headers["x-cache"] == "MISS")
    assert run(["images", "purge", *login]) == 2


def test_an_error_is_forgotten_too(client: Client, door: ImageDoor, image_server: ImageServer) -> None:
    path = "/none.png?later"
    assert door.get("w=50", path).status_code == 502
    asked = image_server.seen.count(path)
    assert door.get("w=50", path).status_code == 502
    assert image_server.seen.count(path) == asked
    client.images.purge(image_server.url(path))
    until(lambda: door.get("w=50", path).status_code == 502 and image_server.seen.count(path) > asked)


def test_images_are_made_on_demand(
    instance: Instance,
    client: Client,
    image_server: ImageServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = client.images.warm(
        [image_server.url("/a.png?warm"), image_server.url("/none.png?warm")], ["w=50", "w=51"]
    )
    assert [(each.options, each.status, each.error) for each in told] == [
        ("w=50", 200, None),
        ("w=51", 422, "invalid_options"),
        ("w=50", 502, "upstream_failed"),
        ("w=51", 422, "invalid_options"),
    ]
    assert client.images.fetch(image_server.url("/a.png?warm"), "w=50").is_hit
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    asked = ["images", "warm", image_server.url("/b.png?warm"), "--options", "w=100", "--url", instance.url]
    assert run([*asked, "--username", "admin"]) == 0
    assert capsys.readouterr().out == f"ready w=100 {image_server.url('/b.png?warm')}\n"
    assert run([*asked, "--options", "w=51", "--username", "admin"]) == 1
    with Client(instance.url) as stranger, pytest.raises(ApiError):
        stranger.images.warm([image_server.url("/a.png")])


def test_what_was_purged_a_moment_ago_is_made_anew_on_demand(
    instance: Instance, client: Client, image_server: ImageServer
) -> None:
    path = "/a.png?warm-again"

    async def warm_by_socket() -> None:
        async with (
            AsyncClient(instance.url, username="admin", password=PASSWORD) as connecting,
            connecting.socket() as socket,
        ):
            await socket.call("warmImages", {"urls": [image_server.url(path)], "options": ["w=50"]})

    client.images.warm([image_server.url(path)], ["w=50"])
    client.images.purge(image_server.url(path))
    client.images.warm([image_server.url(path)], ["w=50"])
    assert image_server.seen.count(path) == 2
    client.images.purge(image_server.url(path))
    asyncio.run(warm_by_socket())
    assert image_server.seen.count(path) == 3
    assert client.images.fetch(image_server.url(path), "w=50").is_hit


def test_the_sdk_fetches_and_describes(client: Client, image_server: ImageServer) -> None:
    fetched = client.images.fetch(image_server.url("/a.png"), "w=50,f=webp")
    assert (fetched.media_type, fetched.body[8:12]) == ("image/webp", b"WEBP")
    described = client.images.describe(image_server.url("/a.png"))
    assert (described.media_type, described.width, described.height, described.frames) == (
        "image/png",
        320,
        240,
        1,
    )
    assert described.color is not None
    assert described.color.startswith("#")
    with pytest.raises(ApiError) as refused:
        client.images.fetch(image_server.url("/none.png?sdk"))
    assert (refused.value.status, refused.value.name) == (502, "upstream_failed")
    with pytest.raises(InsufficientScope):
        client.images.fetch("http://10.0.0.1/a.png")


def test_an_account_sees_what_its_images_took(instance: Instance, client: Client, door: ImageDoor) -> None:
    sent = len(door.get("w=200", "/a.png?counted").content)
    assert door.get("w=200", "/a.png?counted").headers["x-cache"] == "HIT"
    assert door.get("w=51", "/a.png").status_code == 422

    def told() -> bool:
        points = client.statistics.get_images(interval="hour")
        sums = {
            name: sum(getattr(point, name) for point in points)
            for name in ("images", "hits", "errors", "fetches", "sent_bytes")
        }
        return (
            sums["images"] >= 3
            and 0 < sums["hits"] < sums["images"]
            and sums["errors"] >= 1
            and sums["fetches"] >= 1
            and sums["sent_bytes"] >= 2 * sent
        )

    until(told)
    page = httpx.get(f"{instance.ops_url}/metrics", timeout=30).text
    assert "broker_image_sent_bytes_total{" in page
