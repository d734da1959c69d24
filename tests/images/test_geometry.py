"""Sizes, crops and margins, against the rules said slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.images.geometry import (
    Box,
    Face,
    Point,
    Size,
    choose_face,
    crop_around,
    lay_out,
)
from broker.images.options import Options, parse_options


def landmarks(nose: Point) -> tuple[Point, ...]:
    return tuple(nose if at == 30 else Point(0, 0) for at in range(68))


@pytest.mark.parametrize(
    ("source", "options", "scaled"),
    [
        (Size(1000, 500), "w=400,h=300", Size(400, 200)),
        (Size(1000, 500), "h=300", Size(600, 300)),
        (Size(100, 50), "w=400,h=300", Size(100, 50)),
        (Size(100, 50), "w=400,h=300,fit=scale", Size(400, 200)),
        (Size(100, 50), "w=400,fit=scale", Size(400, 200)),
        (Size(9000, 5000), "-", Size(9000, 5000)),
        (Size(1, 10_000), "w=400,fit=scale", Size(1, 4000)),
        (Size(10_000, 1), "w=100", Size(100, 1)),
    ],
)
def test_an_image_is_fitted(source: Size, options: str, scaled: Size) -> None:
    layout = lay_out(source, parse_options(options))
    assert (layout.cut, layout.result) == (Box(0, 0, source.width, source.height), scaled)


@pytest.mark.parametrize(
    ("position", "cut"),
    [
        ("left", Box(0, 0, 500, 500)),
        ("top-left", Box(0, 0, 500, 500)),
        ("center", Box(250, 0, 500, 500)),
        ("bottom", Box(250, 0, 500, 500)),
        ("bottom-right", Box(500, 0, 500, 500)),
    ],
)
def test_fill_keeps_what_its_anchor_says(position: str, cut: Box) -> None:
    layout = lay_out(Size(1000, 500), parse_options(f"w=300,h=300,fit=fill:{position}"))
    assert (layout.cut, layout.result) == (cut, Size(300, 300))


@pytest.mark.parametrize(
    ("position", "offset"), [("top", (0, 0)), ("center", (0, 75)), ("bottom-right", (0, 150))]
)
def test_fit_pads_to_the_size(position: str, offset: tuple[int, int]) -> None:
    layout = lay_out(Size(100, 50), parse_options(f"w=300,h=300,fit=fit:{position}"))
    assert (layout.scaled, layout.canvas, layout.offset) == (Size(300, 150), Size(300, 300), offset)


def test_crop_keeps_a_side_that_is_too_short() -> None:
    layout = lay_out(Size(1000, 50), parse_options("w=300,h=300,fit=crop"))
    assert (layout.cut, layout.result) == (Box(350, 0, 300, 50), Size(300, 50))


def test_the_face_closest_to_the_centre_is_chosen() -> None:
    left, right = Face(100, 200, 80, 80, 0.9), Face(580, 220, 60, 60, 0.5)
    assert choose_face([left, right], Size(1000, 500)) is right
    assert choose_face([], Size(1000, 500)) is None


def test_a_face_is_cropped_around_its_nose() -> None:
    face = Face(400, 200, 80, 100, 0.9, landmarks(Point(450, 260)))
    assert crop_around(face, Size(1000, 800), parse_options("w=400,h=400,fit=face")) == Box(
        360, 170, 180, 180
    )


def test_a_nose_outside_its_box_is_not_trusted() -> None:
    face = Face(400, 200, 80, 100, 0.9, landmarks(Point(500, 260)))
    assert crop_around(face, Size(1000, 800), parse_options("w=400,h=400,fit=face")) == Box(
        350, 160, 180, 180
    )


@pytest.mark.parametrize(
    ("options", "box"),
    [
        # The square of 180 lies inside; the other side grows, and at the edge the whole shifts.
        ("w=800,h=400,fit=face", Box(0, 40, 360, 180)),
        ("w=400,h=800,fit=face", Box(10, 0, 180, 360)),
        # 280 by 560 does not fit into 400 by 500: face sizing, which does.
        ("w=400,h=800,fit=face-and-shoulders", Box(10, 0, 180, 360)),
        # 1.8 heights of 5 to 1 are too wide for 400: shrunk to the width.
        ("w=2000,h=400,fit=face", Box(0, 90, 400, 80)),
        ("w=400,h=400,fit=face,padding=5", Box(0, 0, 400, 400)),
    ],
)
def test_a_crop_shifts_and_then_falls_back(options: str, box: Box) -> None:
    face = Face(60, 80, 80, 100, 0.9)
    assert crop_around(face, Size(400, 500), parse_options(options)) == box


PIXELS = st.integers(1, 5000)
SIDES = st.sampled_from([50, *range(100, 2001, 100)])
MODES = st.sampled_from(["scaledown", "scale", "fill:left", "fill:bottom", "fit:top", "fit", "crop"])


@given(PIXELS, PIXELS, SIDES, SIDES, MODES)
def test_a_layout_stays_inside_its_image(width: int, height: int, w: int, h: int, mode: str) -> None:
    layout = lay_out(Size(width, height), parse_options(f"w={w},h={h},fit={mode}"))
    assert_inside(layout.cut, Size(width, height))
    result = layout.result
    if mode.startswith("fi"):
        assert result == Size(w, h)
    assert result.width <= w
    assert result.height <= h
    if layout.canvas is not None:
        assert 0 <= layout.offset[0] <= w - layout.scaled.width
        assert 0 <= layout.offset[1] <= h - layout.scaled.height


@given(
    PIXELS,
    PIXELS,
    SIDES,
    SIDES,
    st.integers(10, 50),
    st.floats(-100, 5000),
    st.floats(1, 3000),
    st.booleans(),
)
def test_a_face_crop_has_the_aspect_and_stays_inside(
    width: int, height: int, w: int, h: int, padding: int, at: float, side: float, shoulders: bool
) -> None:
    mode = "face-and-shoulders" if shoulders else "face"
    options = parse_options(f"w={w},h={h},fit={mode},padding={padding / 10}")
    box = crop_around(Face(at, at, side, side, 0.9), Size(width, height), options)
    assert_inside(box, Size(width, height))
    # One pixel of rounding on a side, and never under one pixel.
    assert abs(box.width - box.height * w / h) <= 1 + w / h or 1 in (box.width, box.height)


def assert_inside(box: Box, size: Size) -> None:
    assert box.left >= 0 <= box.top
    assert box.width >= 1 <= box.height
    assert box.left + box.width <= size.width
    assert box.top + box.height <= size.height


def test_options_of_a_face_mode_have_a_padding() -> None:
    assert parse_options("w=50,h=50,fit=face").padding == 1.8
    assert Options().padding is None
