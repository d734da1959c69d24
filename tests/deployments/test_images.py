"""Images through the real ingress, from no replica to the end of one."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from broker.cli.main import run
from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance
from tests.images.decoder_processes import decoders_of, fork_servers_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ERROR_CACHE = "public, max-age=300"


@pytest.fixture(scope="module")
def door(instance: Instance, image_server: ImageServer) -> Iterator[ImageDoor]:
    with closing(ImageDoor(instance, image_server)) as door:
        yield door


def test_the_first_request_starts_a_replica_and_gets_its_image(door: ImageDoor) -> None:
    # The files that share the instance and ask it for images come later in the alphabet.
    assert door.pids("images") == set(), "an instance that nobody asks for images runs nothing for them"
    first = door.get("w=100,f=webp")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/webp"), first.text
    assert first.headers["x-cache"] == "MISS"
    assert first.headers["cache-control"] == "public, max-age=5184000, s-maxage=86400"
    assert len(door.pids("images")) == 1


def test_what_was_made_comes_again_without_its_server(door: ImageDoor, image_server: ImageServer) -> None:
    first = door.get("w=200,f=webp", "/a.png?again")
    asked = len(image_server.seen)
    again = door.get("f=webp,w=200", "/a.png?again")
    assert (again.status_code, again.headers["x-cache"]) == (200, "HIT")
    assert again.content == first.content
    assert again.headers["access-control-allow-origin"] == "*"
    head = door.get("w=200,f=webp", "/a.png?again", method="HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(first.content))
    known = door.get("w=200,f=webp", "/a.png?again", if_none_match=first.headers["etag"])
    assert (known.status_code, known.content) == (304, b"")
    assert len(image_server.seen) == asked


def test_a_source_that_was_damaged_on_disk_is_fetched_again(
    door: ImageDoor, instance: Instance, image_server: ImageServer
) -> None:
    sources = instance.data_dir / "images" / "sources"
    before = {*sources.glob("*/*")}
    assert door.get("w=100", "/a.png?damaged").status_code == 200
    (kept,) = {*sources.glob("*/*")} - before
    size = kept.stat().st_size
    with kept.open("r+b") as file:  # as a power cut can leave it
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert door.get("w=200", "/a.png?damaged").status_code == 200
    assert image_server.seen.count("/a.png?damaged") == 2
    log = instance.data_dir / "log" / "broker.log"
    assert "image_cache_damaged" in log.read_text()


def test_a_crop_by_face_is_made_without_a_detector(door: ImageDoor) -> None:
    assert door.get("w=100,h=100,fit=face", "/b.png").status_code == 200


@pytest.mark.parametrize(
    ("options", "path", "url", "status", "name"),
    [
        ("w=51", "/a.png", "", 422, "invalid_options"),
        ("-", "", "ftp://a.test/", 422, "invalid_url"),
        ("-", "", "http://127.0.0.1:1/a.png", 403, "forbidden_url"),
        ("-", "", "http://10.0.0.1/a.png", 403, "forbidden_url"),
        ("-", "", "http://[::ffff:127.0.0.1]/a.png", 403, "forbidden_url"),
        ("-", "/none.png", "", 502, "upstream_failed"),
        ("-", "/page.png", "", 502, "unprocessable_image"),
        ("w=50", "/bomb.png", "", 502, "unprocessable_image"),
        ("-", "/slow.png", "", 504, "upstream_timeout"),
    ],
)
def test_an_error_is_told_in_our_shape(
    door: ImageDoor, options: str, path: str, url: str, status: int, name: str
) -> None:
    told = door.get(options, path, url=url)
    assert (told.status_code, told.json()["error"]) == (status, name)
    assert told.headers["cache-control"] == ERROR_CACHE
    assert "10.0.0" not in told.text
    assert "127.0.0" not in told.text


def test_an_exception_with_a_port_opens_that_port_only(door: ImageDoor) -> None:
    assert door.get("-").status_code == 200
    with ImageServer() as beside:
        told = door.get("-", url=beside.url("/a.png"))
        assert (told.status_code, told.json()["error"]) == (403, "forbidden_url")
        assert not beside.seen


@pytest.mark.parametrize(
    ("unsaid", "said"),
    [
        ("w=300", "w=300,fit=scaledown"),
        ("w=100,h=50,fit=fill", "w=100,h=50,fit=fill:center"),
        ("w=100,h=50,fit=fit", "w=100,h=50,fit=fit:center"),
        ("w=50,h=50,fit=face", "w=50,h=50,fit=face,padding=1.8"),
        ("w=50,h=50,fit=face-and-shoulders", "w=50,h=50,fit=face-and-shoulders,padding=2.8"),
    ],
)
def test_a_default_that_is_written_out_is_the_same_image(door: ImageDoor, unsaid: str, said: str) -> None:
    first, second = door.get(unsaid, "/a.png?default"), door.get(said, "/a.png?default")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/png")  # as its source
    assert (second.headers["x-cache"], second.headers["etag"]) == ("HIT", first.headers["etag"])
    assert second.content == first.content


def test_a_replica_refuses_who_comes_past_the_ingress(door: ImageDoor) -> None:
    (pid,) = door.pids("images")
    ports = {
        connection.laddr[1]
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    told = []
    for port in ports:
        with suppress(httpx.HTTPError):  # Ray's own doors do not speak HTTP/1.1
            told.append(httpx.get(f"http://127.0.0.1:{port}/api/v2/imgproxy/demo/-?url=http://a.test"))
    assert [one.status_code for one in told] == [403]


def test_a_decoder_that_dies_costs_its_image_and_nothing_else(door: ImageDoor) -> None:
    api, images = door.pids("api"), door.pids("images")
    door.get("w=50", "/b.png?before")
    idle = {process.pid for process in door.decoders()}
    told: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: told.append(door.get("w=1000,f=webp,q=100", "/long.gif")))
    asking.start()
    while asking.is_alive():
        for process in door.decoders():
            if process.pid in idle or process.cpu_times().user > 0.5:
                _kill(process.pid)
        time.sleep(0.02)
    asking.join()
    assert (told[0].status_code, told[0].json()["error"]) == (502, "unprocessable_image")
    again = door.get("w=900", "/long.gif")
    assert (again.status_code, again.json()["error_description"]) == (
        502,
        told[0].json()["error_description"],
    )
    assert door.get("w=50", "/b.png?after").status_code == 200
    assert (door.pids("api"), door.pids("images")) == (api, images)


def test_a_kill_of_what_decoders_are_forked_from_costs_no_image(door: ImageDoor) -> None:
    assert door.get("w=50", "/b.png?unkilled").status_code == 200
    (replica,) = door.pids("images")
    decoders = decoders_of(replica)
    assert decoders
    for server in fork_servers_of(replica):  # one whose decoder has crashed ends with its last one
        server.kill()
    assert door.get("w=50", "/b.png?killed").status_code == 200
    assert not set(decoders_of(replica)) & set(decoders)
    assert door.pids("images") == {replica}


def test_no_decoder_outlives_its_replica(door: ImageDoor) -> None:
    door.get("w=50", "/b.png?last")
    (replica,) = door.pids("images")
    decoders = decoders_of(replica)
    assert decoders
    os.kill(replica, signal.SIGKILL)
    _, alive = psutil.wait_procs(decoders, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    until_s = time.monotonic() + 120
    while (found := door.get("w=50", "/b.png?last")).status_code == 503 and time.monotonic() < until_s:
        time.sleep(0.5)
    assert (found.status_code, found.headers["x-cache"]) == (200, "HIT"), "what was made is on disk"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_the_command_line_writes_an_image(
    instance: Instance, image_server: ImageServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.webp"
    asked = ["image", image_server.url("/a.png"), "--url", instance.url]
    assert run([*asked, "--options", "w=100,f=webp", "-o", str(file)]) == 0
    assert file.read_bytes()[8:12] == b"WEBP"
    assert run([*asked, "--options", "w=51", "-o", str(file)]) == 1
    assert "error: invalid_options: w: 50, or 100" in capsys.readouterr().err


def test_a_face_is_found_and_cropped_around(door: ImageDoor) -> None:
    deadline_s = time.monotonic() + 120  # the first search starts a replica, which loads its models
    while (found := door.get("f=json", "/face.jpg").json()).get("faces") is None:
        assert "type" in found, found
        assert time.monotonic() < deadline_s
    faces = found["faces"]
    (face,) = faces
    assert 170 < face["left"] + face["width"] / 2 < 270
    assert 60 < face["top"] + face["height"] / 2 < 160
    assert len(face["landmarks"]) == 68
    crop = door.get("w=100,h=100,fit=face,f=png", "/face.jpg")
    assert (crop.status_code, crop.headers["content-type"]) == (200, "image/png")
    # As large as 1.8 faces, so tighter than what draws the eye of the whole image.
    assert crop.content != door.get("w=100,h=100,fit=fill,f=png", "/face.jpg").content
