"""What comes out of libvips: sizes, colours, frames, and what is refused."""

from collections.abc import Callable

import pytest
import pyvips

from broker.images.decoding import open_libvips, read_header
from broker.images.errors import UnprocessableImage
from broker.images.geometry import Face, Size
from broker.images.jobs import DecodeLimits
from broker.images.options import Format, parse_options
from broker.images.rendering import Rendered, preview, render
from tests.images.pictures import animation, gradient, turned

LIMITS = DecodeLimits()
SAVERS = {"jpg": ".jpg[Q=95]", "png": ".png", "webp": ".webp[Q=95]", "gif": ".gif", "avif": ".avif"}


@pytest.fixture(scope="module", autouse=True)
def _libvips() -> None:
    open_libvips()


def save(image: pyvips.Image, kind: str) -> bytes:
    return bytes(image.write_to_buffer(SAVERS[kind]))


def ask(data: bytes, options: str, faces: tuple[Face, ...] = ()) -> Rendered:
    return render(data, parse_options(options), faces, LIMITS)


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
def test_a_picture_is_seen_as_it_was_taken(orientation: int, options: str) -> None:
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
    deep = (pyvips.Image.black(50, 50, bands=3) + 30_000).cast("ushort").copy(interpretation="rgb16")
    gray = (pyvips.Image.black(50, 50) + 77).cast("uchar").copy(interpretation="b-w")
    for source in (cmyk.jpegsave_buffer(), deep.pngsave_buffer(), gray.pngsave_buffer()):
        image = opened(ask(bytes(source), "f=webp"))
        assert (image.interpretation, image.bands, image.format) == ("srgb", 3, "uchar")
    palette = gradient(50, 50).pngsave_buffer(palette=True)
    assert near(opened(ask(bytes(palette), "f=jpg")), 25, 25, (127, 127, 128), tolerance=16)


def test_garbage_after_the_end_is_ignored() -> None:
    for kind in ("jpg", "png", "gif"):
        ask(save(gradient(64, 48), kind) + b"<script>" * 100, "w=50")


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif", "avif"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_half_a_picture_is_refused(kind: str, share: float) -> None:
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
def test_what_is_no_picture_of_an_allowed_type_is_refused(data: bytes) -> None:
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


def test_a_preview_is_small_rgb() -> None:
    seen = preview(save(gradient(1600, 800, bands=4), "png"), LIMITS)
    assert (seen.size, seen.scale, len(seen.pixels)) == (Size(640, 320), 2.5, 640 * 320 * 3)
    gray = (pyvips.Image.black(50, 40) + 77).cast("uchar").copy(interpretation="b-w")
    seen = preview(bytes(gray.pngsave_buffer()), LIMITS)
    assert (seen.size, seen.scale, set(seen.pixels)) == (Size(50, 40), 1.0, {77})
