"""What comes out of libvips: sizes, colours, frames, and what is refused."""

import math
from collections.abc import Callable

import pytest
import pyvips

from broker.images.decoding import check_image, open_libvips, read_header, srgb_options
from broker.images.errors import UnprocessableImage
from broker.images.geometry import Face, Size
from broker.images.jobs import DecodeLimits
from broker.images.options import Format, parse_options
from broker.images.rendering import Preview, Rendered, jpeg_shrink, preview, render
from tests.images.samples import animation, decibels, gradient, lines, photograph, turned

LIMITS = DecodeLimits()
SAVERS = {"jpg": ".jpg[Q=95]", "png": ".png", "webp": ".webp[Q=95]", "gif": ".gif", "avif": ".avif"}


@pytest.fixture(scope="module", autouse=True)
def _libvips() -> None:
    open_libvips()


def save(image: pyvips.Image, kind: str) -> bytes:
    return bytes(image.write_to_buffer(SAVERS[kind]))


def ask(data: bytes, options: str, faces: tuple[Face, ...] = ()) -> Rendered:
    return render(check_image(data, LIMITS), parse_options(options), faces)


def previewed(data: bytes) -> Preview:
    return preview(check_image(data, LIMITS))


def opened(rendered: Rendered) -> pyvips.Image:
    options = "n=-1" if rendered.format in (Format.GIF, Format.WEBP) else ""
    return pyvips.Image.new_from_buffer(rendered.body, options)


def near(image: pyvips.Image, x: int, y: int, color: tuple[int, ...], tolerance: int = 6) -> bool:
    """JPEG and WebP move a colour by a few steps."""
    return all(abs(is_ - wanted) <= tolerance for is_, wanted in zip(image(x, y), color, strict=True))


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif"])
@pytest.mark.parametrize("f", ["", "jpg", "png", "webp", "gif"])
def test_every_format_becomes_every_other(kind: str, f: str) -> None:
    rendered = ask(save(gradient(64, 48), kind), "w=50,h=50" + (f and f",f={f}"))
    assert rendered.format == (f or kind)
    assert (opened(rendered).width, opened(rendered).height) == (50, 38)


def test_avif_becomes_webp() -> None:
    assert ask(save(gradient(64, 48), "avif"), "-").format is Format.WEBP


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (640, 480)])
@pytest.mark.parametrize(
    ("options", "result"),
    [
        ("w=100,h=50,fit=fill:top-left,f=png", (100, 50)),
        ("w=100,h=50,fit=fit,f=png", (100, 50)),
        ("w=100,h=50,fit=face,f=png", (100, 50)),
        ("w=100,h=50,fit=face-and-shoulders,f=jpg", (100, 50)),
    ],
)
def test_modes_of_two_sides_give_just_that_size(
    size: tuple[int, int], options: str, result: tuple[int, int]
) -> None:
    image = opened(ask(save(gradient(*size), "png"), options))
    assert (image.width, image.height) == result


@pytest.mark.parametrize(
    ("position", "red"), [("left", 32), ("center", 128), ("right", 223)], ids=["left", "center", "right"]
)
@pytest.mark.parametrize("size", [100, 800])
def test_fill_shows_the_anchored_part(position: str, red: int, size: int) -> None:
    image = opened(ask(save(gradient(1600, 400), "jpg"), f"w={size},h={size},fit=fill:{position}"))
    assert near(image, size // 2, size // 2, (red, 127, 128))


def test_fit_pads_with_transparency_or_white() -> None:
    source = save(gradient(100, 50), "png")
    assert opened(ask(source, "w=100,h=100,fit=fit:top"))(50, 90) == [0, 0, 0, 0]
    assert near(opened(ask(source, "w=100,h=100,fit=fit:top,f=jpg")), 50, 90, (255, 255, 255))


def test_transparency_is_white_in_a_jpeg() -> None:
    image = opened(ask(save(gradient(100, 100, bands=4), "png"), "f=jpg"))
    assert near(image, 0, 99, (255, 255, 255))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", ["-", "w=300,h=300,fit=fill:top-left,f=png", "w=100,h=100,fit=scale"])
def test_an_image_is_seen_as_it_was_taken(orientation: int, options: str) -> None:
    stored = gradient(120, 80)
    upright = pyvips.Image.new_from_buffer(turned(stored, orientation), "").autorot()
    expected = opened(ask(bytes(upright.pngsave_buffer(keep="none")), options))
    image = opened(ask(turned(stored, orientation), options))
    assert (image.width, image.height) == (expected.width, expected.height)
    for x, y in [(5, 5), (image.width - 6, 5), (5, image.height - 6)]:
        assert near(image, x, y, tuple(map(int, expected(x, y))), tolerance=10)
    assert not image.get_typeof("exif-data")


@pytest.mark.parametrize("kind", ["gif", "webp"])
@pytest.mark.parametrize("f", ["gif", "webp"])
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("w=50,h=50", (50, 33)),
        ("w=50,h=50,fit=fill", (50, 50)),
        ("w=100,h=100,fit=fit", (100, 100)),
        ("w=50,h=50,fit=face", (50, 50)),
        ("w=100,h=50,fit=crop", (60, 40)),
    ],
)
def test_an_animation_keeps_frames_and_timing(kind: str, f: str, options: str, size: tuple[int, int]) -> None:
    image = opened(ask(save(animation(), kind), f"{options},f={f}"))
    assert (image.width, image.get("page-height")) == size
    assert image.get("delay") == [50, 60, 70, 80, 90, 100]
    assert (image.get("n-pages"), image.get("loop")) == (6, 3)


@pytest.mark.parametrize("f", ["jpg", "png"])
def test_a_still_format_shows_the_first_frame(f: str) -> None:
    image = opened(ask(save(animation(), "gif"), f"f={f}"))
    assert (image.width, image.height) == (60, 40)


def test_a_face_is_shown_and_not_the_middle() -> None:
    face = Face(1200, 100, 100, 100, 0.9)
    image = opened(ask(save(gradient(1600, 800), "jpg"), "w=100,h=100,fit=face", (face,)))
    assert near(image, 50, 50, (199, 48, 128))


def test_colours_become_srgb() -> None:
    cmyk = (
        pyvips.Image.black(50, 50, bands=4)
        .linear(1, [10, 200, 30, 40])
        .cast("uchar")
        .copy(interpretation="cmyk")
    )
    deep = pyvips.Image.black(50, 50, bands=3).linear(1, [60_000, 30_000, 1_000]).cast("ushort")
    deep = deep.copy(interpretation="rgb16")
    gray = (pyvips.Image.black(50, 50) + 77).cast("uchar").copy(interpretation="b-w")
    deep_gray = (pyvips.Image.black(50, 50) + 30_000).cast("ushort").copy(interpretation="grey16")
    # Of ink there is no exact colour: the profile decides, here that of libvips.
    for source, color in (
        (cmyk.jpegsave_buffer(), (197, 79, 127)),
        (deep.pngsave_buffer(), (234, 117, 4)),
        (gray.pngsave_buffer(), (77, 77, 77)),
        (deep_gray.pngsave_buffer(), (117, 117, 117)),
    ):
        for options in ("f=png", "w=50,h=50,fit=fill,f=png", "w=50,h=50,fit=face,f=webp"):
            image = opened(ask(bytes(source), options))
            assert (image.interpretation, image.format) == ("srgb", "uchar")
            assert near(image, 25, 25, color, tolerance=4)
    palette = gradient(50, 50).pngsave_buffer(palette=True)
    assert near(opened(ask(bytes(palette), "f=jpg")), 25, 25, (127, 127, 128), tolerance=16)


def test_what_is_srgb_already_is_not_converted() -> None:
    """A conversion takes as long as decoding, so only images that need one go through it."""
    wide = gradient(50, 50).icc_transform("p3", input_profile="srgb")
    deep = (pyvips.Image.black(50, 50) + 30_000).cast("ushort").copy(interpretation="grey16")
    gray = (pyvips.Image.black(50, 50) + 77).cast("uchar").copy(interpretation="b-w")
    plain = [save(gradient(50, 50), kind) for kind in SAVERS]
    for source in (*plain, bytes(gray.pngsave_buffer()), bytes(gray.jpegsave_buffer())):
        assert srgb_options(read_header(source, LIMITS)) == {}
    for source in (wide.jpegsave_buffer(Q=95, keep="icc"), deep.pngsave_buffer()):
        assert srgb_options(read_header(bytes(source), LIMITS)) == {"export_profile": "srgb"}
    seen = opened(ask(bytes(wide.pngsave_buffer(keep="icc")), "w=50,h=50,f=png"))
    assert near(seen, 25, 25, (127, 127, 128), tolerance=3)


@pytest.mark.parametrize(("width", "height"), [(2_000, 1_500), (2_003, 1_501), (1_999, 1_507)])
@pytest.mark.parametrize("side", [700, 400, 300, 100])
def test_a_jpeg_that_its_decoder_shrinks_looks_as_if_the_filter_had(
    width: int, height: int, side: int
) -> None:
    data = bytes(photograph(width, height).jpegsave_buffer(Q=95))
    seen = opened(ask(data, f"w={side},f=png"))
    whole = pyvips.Image.new_from_buffer(data, "")
    filtered = whole.reduce(width / seen.width, height / seen.height)
    assert (filtered.width, filtered.height) == (seen.width, seen.height)
    assert decibels(seen, filtered) > 38


@pytest.mark.parametrize("angle", [0, 37])
@pytest.mark.parametrize("period", [2.3, 3.3, 7.1])
@pytest.mark.parametrize("side", [600, 700])
def test_fine_lines_get_no_moire(side: int, period: float, angle: float) -> None:
    """A JPEG's decoder, which averages blocks, would make wide lines of them at these sizes."""
    data = bytes(lines(1_750, 400, period, angle).jpegsave_buffer(Q=95, subsample_mode="off"))
    seen = opened(ask(data, f"w={side},f=png"))
    whole = pyvips.Image.new_from_buffer(data, "")
    assert decibels(seen, whole.reduce(whole.width / seen.width, whole.height / seen.height)) > 38


def test_a_jpegs_decoder_shrinks_no_more_than_sharps() -> None:
    """sharp 0.35, `src/pipeline.cc`; but for what is a hundredth short of a step, by rounding of a side."""
    for factor in [number / 20 for number in range(20, 400) if number != 99]:
        step = next(step for step in (8, 4, 2, 1) if factor >= step)
        theirs = step // 2 if step > 1 and int(factor) == step else step
        assert jpeg_shrink(factor) <= theirs, factor


@pytest.mark.parametrize(
    ("factor", "fine", "fast"),
    [(1.9, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 4), (5, 4, 4), (8, 4, 8), (12, 8, 8)],
)
def test_a_jpegs_decoder_shrinks_as_far_as_it_can_where_that_was_chosen(
    factor: float, fine: int, fast: int
) -> None:
    assert (jpeg_shrink(factor), jpeg_shrink(factor, is_fast=True)) == (fine, fast)


def shrunk_fast(data: bytes, options: str) -> pyvips.Image:
    return opened(render(check_image(data, LIMITS, shrinks_fast=True), parse_options(options), ()))


def test_an_image_that_is_shrunk_fast_is_what_its_decoder_makes_of_it() -> None:
    data = bytes(photograph(1_600, 1_200).jpegsave_buffer(Q=95))
    decoded = pyvips.Image.new_from_buffer(data, "", shrink=4)
    assert decibels(shrunk_fast(data, "w=400,f=png"), decoded) == math.inf
    assert decibels(opened(ask(data, "w=400,f=png")), decoded) < 50


@pytest.mark.parametrize("size", [(1_603, 1_207), (1_650, 1_100), (801, 603)])
def test_an_image_that_is_shrunk_fast_is_nearly_what_the_filter_makes_of_it(size: tuple[int, int]) -> None:
    data = bytes(photograph(*size).jpegsave_buffer(Q=95))
    seen = shrunk_fast(data, "w=400,f=png")
    whole = pyvips.Image.new_from_buffer(data, "")
    assert decibels(seen, whole.reduce(whole.width / seen.width, whole.height / seen.height)) > 34


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_that_its_decoder_shrinks_is_seen_as_it_was_taken(orientation: int) -> None:
    upright = photograph(801, 603)
    upright.set_type(pyvips.GValue.gint_type, "orientation", orientation)
    data = bytes(upright.jpegsave_buffer(Q=95))
    seen = opened(ask(data, "w=100,f=png"))
    small = pyvips.Image.new_from_buffer(data, "").autorot()
    assert decibels(seen, small.reduce(small.width / seen.width, small.height / seen.height)) > 35


def test_a_jpeg_that_its_decoder_shrinks_becomes_srgb() -> None:
    wide = photograph(800, 600).icc_transform("p3", input_profile="srgb")
    seen = opened(ask(bytes(wide.jpegsave_buffer(Q=98, keep="icc")), "w=100,f=png"))
    assert decibels(seen, photograph(800, 600).reduce(8, 8)) > 35


def test_a_small_jpeg_has_huffman_tables_of_its_own() -> None:
    made = ask(bytes(photograph(1_000, 800).pngsave_buffer()), "w=100,f=jpg").body
    again = pyvips.Image.new_from_buffer(made, "").jpegsave_buffer(Q=85, keep="icc")
    assert len(made) < 0.95 * len(again)


def test_a_png_is_lossless() -> None:
    for bands in (3, 4):
        source = gradient(64, 48, bands)
        image = opened(ask(save(source, "png"), "-"))
        assert (image.bands, (image - source).abs().max()) == (bands, 0)


@pytest.mark.parametrize(
    ("f", "has_quality"), [("jpg", True), ("webp", True), ("png", False), ("gif", False)]
)
def test_quality_is_that_of_jpeg_and_webp(f: str, has_quality: bool) -> None:
    source = save(photograph(300, 200), "png")
    low, high = (len(ask(source, f"w=200,q={quality},f={f}").body) for quality in (10, 90))
    assert (2 * low < high) == has_quality
    assert has_quality or low == high


@pytest.mark.parametrize("f", ["jpg", "png", "webp"])
def test_metadata_is_dropped_and_a_colour_profile_is_not(f: str) -> None:
    noted = gradient(64, 48).icc_transform("p3", input_profile="srgb").copy()
    noted.set_type(pyvips.GValue.gstr_type, "exif-ifd0-Artist", "somebody (somebody, ASCII, 8 components)")
    noted.set_type(pyvips.GValue.blob_type, "xmp-data", b"<x:xmpmeta xmlns:x='adobe:ns:meta/'/>")
    data = bytes(noted.jpegsave_buffer(keep="all"))
    stored = pyvips.Image.new_from_buffer(data, "")
    fields = ("exif-data", "xmp-data", "iptc-data", "icc-profile-data")
    assert [stored.get_typeof(field) > 0 for field in fields] == [True, True, False, True]
    image = opened(ask(data, f"w=50,f={f}"))
    assert [image.get_typeof(field) > 0 for field in fields] == [False, False, False, True]


def test_gray_with_transparency_keeps_it() -> None:
    gray = (pyvips.Image.black(60, 60) + 77).cast("uchar").bandjoin(128).copy(interpretation="b-w")
    image = opened(ask(bytes(gray.pngsave_buffer()), "w=50,h=50,fit=fill,f=png"))
    assert (image.interpretation, image.bands) == ("srgb", 4)
    assert near(image, 25, 25, (77, 77, 77, 128), tolerance=3)


@pytest.mark.parametrize("width", [600, 1_400, 2_600, 5_200])
def test_a_preview_of_a_jpeg_is_that_of_its_pixels(width: int) -> None:
    """Its decoder does most of the shrinking; what detectors see must not move by that."""
    image = gradient(width, width // 2)
    for orientation in (1, 6):
        seen = previewed(turned(image, orientation))
        upright = image if orientation == 1 else image.rot90()
        wanted = previewed(save(upright, "png"))
        assert (seen.size, seen.scale) == (wanted.size, wanted.scale)
        assert max(abs(is_ - was) for is_, was in zip(seen.pixels, wanted.pixels, strict=True)) <= 8


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("side", [(1, 1), (1, 10_000), (10_000, 1), (10_000, 3), (5_000, 7)])
def test_a_line_has_a_preview(side: tuple[int, int], kind: str) -> None:
    """A JPEG's decoder shrinks no side to nothing: it refuses."""
    seen = previewed(save(gradient(*side), kind))
    assert seen.size == Size(*(min(640, max(1, round(each * 640 / max(*side, 640)))) for each in side))


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif"])
@pytest.mark.parametrize(
    ("side", "sizes"),
    [
        pytest.param((1, 1), [(1, 1), (1, 1), (200, 200), (50, 50), (100, 50), (1, 1), (50, 100)], id="dot"),
        pytest.param(
            (1, 10_000),
            [(1, 10_000), (1, 200), (1, 200), (50, 50), (100, 50), (1, 50), (50, 100)],
            id="line",
        ),
    ],
)
def test_dots_and_lines_are_made_in_every_mode(
    side: tuple[int, int], sizes: list[tuple[int, int]], kind: str
) -> None:
    data, modes = (
        save(gradient(*side), kind),
        (
            "-",
            "h=200",
            "h=200,fit=scale",
            "w=50,h=50,fit=fill",
            "w=100,h=50,fit=fit",
            "w=50,h=50,fit=crop",
            "w=50,h=100,fit=face",
        ),
    )
    made = [opened(ask(data, mode)) for mode in modes]
    assert [(image.width, image.height) for image in made] == sizes


def test_garbage_after_the_end_is_ignored() -> None:
    for kind in ("jpg", "png", "gif"):
        ask(save(gradient(64, 48), kind) + b"<script>" * 100, "w=50")


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif", "avif"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_half_an_image_is_refused(kind: str, share: float) -> None:
    data = save(gradient(400, 300), kind)
    with pytest.raises(UnprocessableImage):
        ask(data[: int(len(data) * share)], "w=100,f=png")


@pytest.mark.parametrize("kind", ["gif", "webp"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_half_an_animation_is_refused(kind: str, share: float) -> None:
    data = save(animation(), kind)
    with pytest.raises(UnprocessableImage):
        ask(data[: int(len(data) * share)], "w=50")


SVG = b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'><rect width='9' height='9'/></svg>"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        SVG,
        b"%PDF-1.7",
        b"P6 1 1 255 abc",
        b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic",
        b"II*\x00\x08\x00\x00\x00",
        b"<html>",
    ],
)
def test_what_is_no_image_of_an_allowed_type_is_refused(data: bytes) -> None:
    with pytest.raises(UnprocessableImage):
        ask(data, "-")


def test_other_loaders_are_blocked_even_if_asked() -> None:
    loaders: list[Callable[[], object]] = [
        lambda: pyvips.Image.svgload_buffer(SVG),
        lambda: pyvips.Image.new_from_buffer(b"P6 1 1 255 abc", ""),
        lambda: pyvips.Image.rawload("/dev/zero", 1, 1, 1),
    ]
    for load in loaders:
        with pytest.raises(pyvips.Error):
            load()


@pytest.mark.parametrize(
    "limits",
    [
        DecodeLimits(frame_pixels=60 * 40 - 1),
        DecodeLimits(total_pixels=60 * 40 * 6 - 1),
        DecodeLimits(frames=5),
        DecodeLimits(side_px=59),
    ],
)
def test_limits_are_judged_by_the_header(limits: DecodeLimits) -> None:
    data = save(animation(), "gif")
    read_header(data, DecodeLimits(60 * 40, 60 * 40 * 6, 6, 60))
    with pytest.raises(UnprocessableImage, match="over"):
        read_header(data, limits)


def test_the_limits_are_those_of_the_interface() -> None:
    limits = DecodeLimits()
    assert (limits.frame_pixels, limits.total_pixels, limits.frames) == (50_000_000, 200_000_000, 500)
    assert read_header(save(flashes(500), "gif"), limits).frames == 500
    with pytest.raises(UnprocessableImage, match="500 frames"):
        read_header(save(flashes(501), "gif"), limits)


def flashes(frames: int) -> pyvips.Image:
    """Black and white in turns, so that no encoder joins two frames."""
    shades = [pyvips.Image.black(1, 1, bands=3) + 255 * (at % 2) for at in range(frames)]
    joined = pyvips.Image.arrayjoin(shades, across=1).cast("uchar").copy(interpretation="srgb")
    joined.set_type(pyvips.GValue.gint_type, "page-height", 1)
    return joined


def test_a_preview_is_small_rgb() -> None:
    seen = previewed(save(gradient(1600, 800, bands=4), "png"))
    assert (seen.size, seen.scale, len(seen.pixels)) == (Size(640, 320), 2.5, 640 * 320 * 3)
    gray = (pyvips.Image.black(50, 40) + 77).cast("uchar").copy(interpretation="b-w")
    seen = previewed(bytes(gray.pngsave_buffer()))
    assert (seen.size, seen.scale, set(seen.pixels)) == (Size(50, 40), 1.0, {77})
