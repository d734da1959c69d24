"""What each option makes of an image, through the real ingress.

The sources are 320 x 240 and 240 x 320 pixels. Red grows to the right and green to the bottom, from 0 to 255,
so a colour says which place of the source is seen.
"""

from collections.abc import Iterator
from contextlib import closing
from itertools import product

import httpx
import pytest
import pyvips

from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")
POSITIONS = {
    "-".join(filter(None, (row, column))) or "center": (across, down)
    for (down, row), (across, column) in product(enumerate(ROWS), enumerate(COLUMNS))
}
"""Name -> which third across and down, from 0."""
TYPES = {"": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif"}
TYPES["webp"] = "image/webp"


@pytest.fixture(scope="module")
def door(instance: Instance, image_server: ImageServer) -> Iterator[ImageDoor]:
    with closing(ImageDoor(instance, image_server)) as door:
        yield door


def opened(reply: httpx.Response) -> pyvips.Image:
    assert reply.status_code == 200, reply.text
    return pyvips.Image.new_from_buffer(reply.content, "")


def assert_color(image: pyvips.Image, place: tuple[int, int], color: tuple[int, ...]) -> None:
    assert image(*place) == pytest.approx(color, abs=4)


@pytest.mark.parametrize("position", POSITIONS)
def test_fill_keeps_the_part_that_its_position_names(door: ImageDoor, position: str) -> None:
    across, down = POSITIONS[position]
    wide = opened(door.get(f"w=100,h=100,fit=fill:{position}"))
    assert (wide.width, wide.height) == (100, 100)
    assert_color(wide, (50, 50), ((96, 128, 159)[across], 128, 128))
    high = opened(door.get(f"w=100,h=100,fit=fill:{position}", "/b.png"))
    assert_color(high, (50, 50), (128, (96, 128, 159)[down], 128))


@pytest.mark.parametrize("position", POSITIONS)
def test_fit_pads_where_its_position_leaves_room(door: ImageDoor, position: str) -> None:
    across, down = POSITIONS[position]
    wide = opened(door.get(f"w=100,h=100,fit=fit:{position}"))
    assert (wide.width, wide.height, wide.bands) == (100, 100, 4)
    top = (0, 12, 25)[down]
    assert [wide(50, y)[3] for y in (top, top + 74)] == [255, 255]
    assert [wide(50, y)[3] for y in (top - 1, top + 75) if 0 <= y < 100] == [0] * (2 if down == 1 else 1)
    high = opened(door.get(f"w=100,h=100,fit=fit:{position}", "/b.png"))
    left = (0, 12, 25)[across]
    assert [high(x, 50)[3] for x in (left, left + 74)] == [255, 255]
    assert [high(x, 50)[3] for x in (left - 1, left + 75) if 0 <= x < 100] == [0] * (2 if across == 1 else 1)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("-", (320, 240)),
        ("w=100", (100, 75)),
        ("h=50", (67, 50)),
        ("w=400,h=400", (320, 240)),
        ("w=100,h=50,fit=scaledown", (67, 50)),
        ("w=400,fit=scale", (400, 300)),
        ("w=600,h=300,fit=scale", (400, 300)),
        ("w=400,h=400,fit=fill", (400, 400)),
        ("w=400,h=400,fit=fit", (400, 400)),
        ("w=100,h=100,fit=crop", (100, 100)),
        ("w=400,h=100,fit=crop", (320, 100)),
        ("w=100,h=50,fit=face", (100, 50)),
        ("w=100,h=50,fit=face,padding=5", (100, 50)),
        ("w=50,h=100,fit=face-and-shoulders", (50, 100)),
        ("w=50,h=100,fit=face-and-shoulders,padding=1.5", (50, 100)),
    ],
)
def test_a_mode_gives_its_size(door: ImageDoor, options: str, size: tuple[int, int]) -> None:
    image = opened(door.get(options))
    assert (image.width, image.height) == size


def test_crop_is_the_middle_of_the_source_as_it_is(door: ImageDoor) -> None:
    image = opened(door.get("w=100,h=100,fit=crop"))
    assert_color(image, (0, 0), (88, 74, 128))
    assert_color(image, (99, 99), (167, 180, 128))


@pytest.mark.parametrize("f", TYPES)
def test_a_format_is_what_it_says(door: ImageDoor, f: str) -> None:
    reply = door.get("w=100" + (f and f",f={f}"))
    assert reply.headers["content-type"] == TYPES[f]
    loader = {"image/jpeg": "jpeg", "image/png": "png", "image/gif": "gif", "image/webp": "webp"}[TYPES[f]]
    assert opened(reply).get("vips-loader").startswith(loader)


@pytest.mark.parametrize("f", ["jpg", "webp"])
def test_quality_makes_a_file_larger(door: ImageDoor, f: str) -> None:
    sizes = [len(door.get(f"f={f}{q}").content) for q in (",q=10", "", ",q=100")]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("w=150", "w"),
        ("h=2100", "h"),
        ("w=100,w=100", "w"),
        ("fit=cover", "fit"),
        ("w=100,fit=fill", "fit"),
        ("w=100,h=100,fit=crop:top", "fillPosition"),
        ("w=100,h=100,fit=fill:middle", "fillPosition"),
        ("q=85", "q"),
        ("f=avif", "f"),
        ("padding=2", "padding"),
        ("w=100,h=100,fit=face,padding=5.1", "padding"),
        ("blur=3", "blur"),
    ],
)
def test_an_option_at_fault_is_named(door: ImageDoor, options: str, name: str) -> None:
    reply = door.get(options)
    assert (reply.status_code, reply.headers["cache-control"]) == (422, "public, max-age=300")
    told = reply.json()
    assert (told["error"], [fault["field"] for fault in told["errors"]]) == ("invalid_options", [name])
