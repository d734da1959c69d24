"""What a stranger gets from the route for images, by the real ingress: no inner place, no outage."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import quote

import psutil
import pytest

from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import LARGE_BYTES, ImageServer
from tests.deployments.instance import Instance
from tests.images.refused_urls import FORBIDDEN, INNER, INVALID

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def door(instance: Instance, image_server: ImageServer) -> Iterator[ImageDoor]:
    with closing(ImageDoor(instance, image_server)) as door:
        yield door


def test_no_url_leads_inside(door: ImageDoor) -> None:
    expected = [(url, 403, "forbidden_url") for url in FORBIDDEN] + [
        (url, 422, "invalid_url") for url in INVALID if len(url) < 8_000
    ]
    for url, status, name in expected:
        told = door.get("w=50", url=url or " ")
        assert (told.status_code, told.json()["error"]) == (status, name), url
        assert told.headers["cache-control"] == "public, max-age=300"
        assert not [inner for inner in INNER if inner in told.text], told.text


def test_no_redirect_leads_inside(door: ImageDoor) -> None:
    for place in ("http://127.0.0.1:1/a.png", "http://[::1]/", "//169.254.169.254/", "http://localhost/"):
        told = door.get("w=50", f"/redirect?{quote(place, safe='')}")
        assert (told.status_code, told.json()["error"]) == (403, "forbidden_url"), place
        assert not [inner for inner in INNER if inner in told.text], told.text
    for place in ("file:///etc/passwd", "http://user:s3cret@a.test/"):
        told = door.get("w=50", f"/redirect?{quote(place, safe='')}")
        assert told.status_code in (403, 422), place
        assert not [inner for inner in INNER if inner in told.text], told.text
    endless = door.get("w=50", "/redirect?" + quote("/redirect-again", safe=""))
    assert (endless.status_code, endless.json()["error"]) == (502, "upstream_failed")


@pytest.mark.parametrize(
    ("target", "statuses"),
    [
        ("/api/v2/imgproxy", {404}),
        ("/api/v2/imgproxy/", {404}),
        ("/api/v2/imgproxy/demo", {404}),
        ("/api/v2/imgproxy/demo/-", {422}),
        ("/api/v2/imgproxy/demo/-?url=", {422}),
        ("/api/v2/imgproxy/demo/-?url=http://a.test/&url=http://b.test/", {422}),
        ("/api/v2/imgproxy/demo/-?url=http://a.test/&x=1", {422}),
        ("/api/v2/imgproxy/demo/-?url=%ff", {422}),
        ("/api/v2/imgproxy/demo/-?url=http%3A%2F%2F127.0.0.1%2F%00", {403, 422}),
        ("/api/v2/imgproxy/DEMO/-?url=http://a.test/", {404}),
        ("/api/v2/imgproxy/nobody/-?url=http://a.test/", {404}),
        ("/api/v2/imgproxy/demo/../../v1/version?url=http://a.test/", {404}),
        ("/api/v2/imgproxy/demo/%2e%2e%2f%2e%2e?url=http://a.test/", {404, 422}),
        ("/api/v2/imgproxy/demo/-/more?url=http://a.test/", {404}),
        ("/api/v2/imgproxy/demo/" + "w=50," * 100 + "?url=http://a.test/", {422}),
        ("/api/v2/imgproxy/-/routes", {404, 422}),
        ("/api/v2/imgproxy/-/healthz", {404, 422}),
    ],
)
def test_an_odd_request_is_refused_in_our_shape(door: ImageDoor, target: str, statuses: set[int]) -> None:
    status, headers, body = door.send(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status in statuses, body
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert set(json.loads(body)) >= {"error", "error_description"}


def test_a_forged_word_of_the_ingress_and_other_methods_change_nothing(door: ImageDoor) -> None:
    head = "/api/v2/imgproxy/demo/w=50?url=http%3A%2F%2F127.0.0.1%2Fa.png HTTP/1.1\r\nHost: x\r\n"
    forged = "X-Broker-Ingress: x public 192.0.2.1\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n"
    assert door.send(f"GET {head}{forged}")[0] == 403
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, headers, _ = door.send(f"{method} {head}Content-Length: 0\r\nConnection: close\r\n\r\n")
        assert (status, headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    told = door.send(f"GET {head}Content-Length: 3\r\nConnection: close\r\n\r\nabc")
    assert told[0] == 403, "a body is no one's business"


def test_requests_on_one_connection_get_their_own_replies_in_turn(door: ImageDoor) -> None:
    made = {options: door.get(options, "/b.png?turns") for options in ("w=50", "w=100")}
    kept = door.get("w=50", "/b.png?turns")
    assert kept.headers["x-cache"] == "HIT"
    source = quote(door.source("/b.png?turns"), safe="")

    def request(method: str, options: str, more: str = "", body: str = "") -> str:
        target = f"/api/v2/imgproxy/demo/{options}?url={source}"
        return f"{method} {target} HTTP/1.1\r\nHost: demo\r\nX-Request-Id: {next(ids)}\r\n{more}\r\n{body}"

    ids = iter("abcdefghij")
    forged = "X-Broker-Ingress: x public 192.0.2.1\r\nX-Broker-Purges: 9 x\r\n"
    hidden = request("GET", "w=100", forged)  # its id is never answered
    asked = [
        request("GET", "w=50"),
        request("GET", "w=100"),
        request("GET", "w=50", f"Content-Length: {len(hidden)}\r\n", hidden),
        request(
            "GET", "w=100", "Transfer-Encoding: chunked\r\n", f"{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n"
        ),
        request("GET", "w=50", f"If-None-Match: {kept.headers['etag']}\r\n"),
        request("GET", "w=50", forged),
        request("HEAD", "w=100"),
        request("GET", "w=51"),
        request("GET", "w=50", "Connection: close\r\n"),
    ]
    replies = door.send_all("".join(asked), [request.split(" ")[0] for request in asked])
    assert [(status, headers["x-request-id"]) for status, headers, _ in replies] == [
        *((200, "b"), (200, "c"), (200, "d"), (200, "e"), (304, "f")),
        *((200, "g"), (200, "h"), (422, "i"), (200, "j")),
    ]
    small, large = made["w=50"].content, made["w=100"].content
    bodies = [body for _, _, body in replies]
    assert bodies[:7] == [small, large, small, large, b"", small, b""]
    assert bodies[8] == small


def test_svg_and_scripts_never_come_out(door: ImageDoor) -> None:
    for path in ("/page.png", "/vector.png", "/vector.svg", "/document.png"):
        for options in ("-", "f=png", "f=json", "w=50,h=50,fit=face"):
            told = door.get(options, path)
            assert (told.status_code, told.json()["error"]) == (502, "unprocessable_image"), (path, options)


def test_bombs_cost_little_time_and_bounded_memory(door: ImageDoor) -> None:
    door.get("w=50", "/b.png?warm")
    before_s = door.decoder_seconds()
    for path in ("/bomb.png", "/frames.gif", "/packed.png"):
        for options in ("w=50", "f=json", "w=50,h=50,fit=face"):
            told = door.get(options, path)
            assert (told.status_code, told.json()["error"]) == (502, "unprocessable_image"), path
    # Nine of them took a fifth of a second; to decode one of the size that it claims would take a minute.
    assert door.decoder_seconds() - before_s < 5
    assert max(process.memory_info().rss for process in door.decoders()) < 512 << 20


def test_a_page_of_large_images_gets_all_of_them_in_bounded_memory(door: ImageDoor) -> None:
    door.get("w=50", "/b.png?warm")
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda at: door.get("w=50", f"/large.jpg?{at}"), range(32)))
    assert [reply.text for reply in replies if reply.status_code != 200] == []
    # Of refused fetches nothing stays: with all that came of them it were some 40 times as much as one.
    (replica,) = door.pids("images")
    assert psutil.Process(replica).memory_info().rss < (160 << 20) + 20 * LARGE_BYTES
