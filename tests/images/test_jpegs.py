"""JPEGs read and written by Pillow: the same pixels as libvips', and what is left to libvips."""

import gc
import io
import random

import pytest
import pyvips
from PIL import Image

from broker.images import jpegs
from broker.images.decoding import check_image, open_libvips
from broker.images.errors import UnprocessableImage
from broker.images.jobs import DecodeLimits
from broker.images.jpegs import decode_jpeg, encode_jpeg, scale_jpeg, shrink_jpeg
from broker.images.options import parse_options
from broker.images.rendering import render
from tests.images.samples import decibels, photograph

PLAIN = bytes(photograph(400, 300).jpegsave_buffer(Q=90))


@pytest.fixture(scope="module", autouse=True)
def _libvips() -> None:
    open_libvips()


def opened(data: bytes, **options: int) -> pyvips.Image:
    return pyvips.Image.new_from_buffer(data, "", **options)


def greatest_difference(one: pyvips.Image, other: pyvips.Image) -> float:
    assert (one.width, one.height, one.bands) == (other.width, other.height, other.bands)
    return float((one - other).abs().max())


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("colors", ["on", "off", "gray"])
@pytest.mark.parametrize("size", [(400, 300), (401, 303), (407, 299), (8, 8), (16, 9)])
def test_what_a_decoder_shrinks_is_what_libvips_would_have(
    size: tuple[int, int], colors: str, shrink: int
) -> None:
    image = photograph(*size)
    if colors == "gray":
        data = bytes(image.colourspace("b-w").jpegsave_buffer(Q=90))
    else:
        data = bytes(image.jpegsave_buffer(Q=90, subsample_mode=colors))
    decoded, theirs = decode_jpeg(data, shrink), opened(data, shrink=shrink)
    assert decoded is not None
    assert decoded.interpretation == theirs.interpretation
    assert greatest_difference(decoded, theirs) == 0


@pytest.mark.parametrize("colors", ["on", "gray"])
@pytest.mark.parametrize("shrink", [2, 4])
@pytest.mark.parametrize("size", [(400, 300), (401, 303), (407, 299)])
@pytest.mark.parametrize("target", [(90, 70), (33, 25), (61, 7)])
def test_what_is_scaled_is_what_libvips_would_have_made(
    size: tuple[int, int], colors: str, shrink: int, target: tuple[int, int]
) -> None:
    image = photograph(*size)
    if colors == "gray":
        image = image.colourspace("b-w")
    data = bytes(image.jpegsave_buffer(Q=95, subsample_mode="off"))
    scaled = scale_jpeg(data, shrink, target)
    assert scaled is not None
    whole = opened(data)
    filtered = whole.thumbnail_image(target[0], height=target[1], size="force")
    assert scaled.interpretation == filtered.interpretation
    assert decibels(scaled, filtered) > 32


def test_a_profile_is_read_and_written() -> None:
    wide = photograph(80, 60).icc_transform("p3", input_profile="srgb")
    profile = wide.get("icc-profile-data")
    decoded = decode_jpeg(bytes(wide.jpegsave_buffer(keep="icc")), 2)
    assert decoded is not None
    assert decoded.get("icc-profile-data") == profile
    written = encode_jpeg(decoded, 85, has_own_tables=True)
    assert written is not None
    assert opened(written).get("icc-profile-data") == profile


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(photograph(400, 300).jpegsave_buffer(interlace=True)), id="progressive"),
        pytest.param(
            bytes(photograph(400, 300).icc_transform("cmyk", input_profile="srgb").jpegsave_buffer()),
            id="other colours",
        ),
        pytest.param(PLAIN[: len(PLAIN) // 2], id="truncated"),
        pytest.param(PLAIN[:200], id="without pixels"),
        pytest.param(b"\xff\xd8\xff" + bytes(100), id="no JPEG"),
        pytest.param(bytes(photograph(3, 300).jpegsave_buffer()), id="nothing is left"),
    ],
)
def test_what_is_not_plain_is_left_to_libvips(data: bytes) -> None:
    assert decode_jpeg(data, 4) is None
    assert scale_jpeg(data, 4, (30, 20)) is None
    assert shrink_jpeg(data, 4, (30, 20), 85, has_own_tables=True) is None


def test_what_is_too_large_to_be_held_is_left_to_libvips(monkeypatch: pytest.MonkeyPatch) -> None:
    image = photograph(400, 300)
    monkeypatch.setattr(jpegs, "MOST_PIXELS", 200 * 150)
    assert decode_jpeg(PLAIN, 2) is not None
    assert encode_jpeg(image, 85, has_own_tables=False) is None
    monkeypatch.setattr(jpegs, "MOST_PIXELS", 200 * 150 - 1)
    assert decode_jpeg(PLAIN, 2) is None


@pytest.mark.parametrize(
    ("quality", "sampling"), [(80, "4:2:0"), (85, "4:2:0"), (90, "4:4:4"), (100, "4:4:4")]
)
@pytest.mark.parametrize("has_own_tables", [False, True])
def test_a_jpeg_is_as_good_and_as_long_as_libvips(quality: int, sampling: str, has_own_tables: bool) -> None:
    image = photograph(400, 300)
    written = encode_jpeg(image, quality, has_own_tables=has_own_tables)
    assert written is not None
    theirs = bytes(image.jpegsave_buffer(Q=quality, optimize_coding=has_own_tables, keep="none"))
    for made in (written, theirs):
        assert opened(made).get("jpeg-chroma-subsample") == sampling
    assert decibels(opened(written), image) > decibels(opened(theirs), image) - 0.1
    assert len(written) < 1.01 * len(theirs)


def test_an_image_of_noise_is_written_by_either() -> None:
    """Of one with tables of its own Pillow expects that it has no more bytes than pixels."""
    noise = random.Random(1).randbytes(300 * 200 * 3)
    data = bytes(pyvips.Image.new_from_memory(noise, 300, 200, 3, "uchar").pngsave_buffer())
    made = render(check_image(data, DecodeLimits()), parse_options("q=100,f=jpg"), ())
    assert (opened(made.body).width, opened(made.body).height) == (300, 200)


def test_what_a_decoder_shrinks_alone_is_what_comes_through_libvips() -> None:
    through = decode_jpeg(PLAIN, 4)
    alone = shrink_jpeg(PLAIN, 4, (100, 75), 85, has_own_tables=True)
    assert through is not None
    assert alone == encode_jpeg(through, 85, has_own_tables=True)
    checked = check_image(PLAIN, DecodeLimits(), shrinks_fast=True)
    assert render(checked, parse_options("w=100,h=100,f=jpg"), ()).body == alone


@pytest.mark.parametrize("target", [(200, 150), (90, 70)])
def test_what_a_decoder_shrinks_alone_has_no_metadata(target: tuple[int, int]) -> None:
    noted = io.BytesIO()
    exif = Image.Exif()
    exif[0x013B] = "somebody"
    Image.open(io.BytesIO(PLAIN)).save(noted, "JPEG", comment=b"a comment", exif=exif, xmp=b"<x:xmpmeta/>")
    alone = shrink_jpeg(noted.getvalue(), 2, target, 85, has_own_tables=True)
    assert alone is not None
    assert b"a comment" in noted.getvalue()
    for text in (b"a comment", b"somebody", b"xmpmeta"):
        assert text not in alone


@pytest.mark.parametrize(
    ("options", "orientation"),
    [
        ("w=100,f=png", 1),
        ("w=100,h=50,fit=fill,f=jpg", 1),
        ("w=100,f=jpg", 6),
        ("w=300,f=jpg", 1),
    ],
    ids=["another format", "a part", "turned", "another factor"],
)
def test_an_image_with_more_to_do_passes_libvips(
    monkeypatch: pytest.MonkeyPatch, options: str, orientation: int
) -> None:
    image = photograph(400, 300)
    image.set_type(pyvips.GValue.gint_type, "orientation", orientation)
    checked = check_image(bytes(image.jpegsave_buffer(Q=90)), DecodeLimits(), shrinks_fast=True)
    monkeypatch.setattr("broker.images.rendering.shrink_jpeg", None)
    render(checked, parse_options(options), ())


def test_an_image_that_no_jpeg_can_hold_is_refused() -> None:
    line = bytes(pyvips.Image.black(65_501, 1).copy(interpretation="b-w").pngsave_buffer())
    with pytest.raises(UnprocessableImage):
        render(check_image(line, DecodeLimits()), parse_options("f=jpg"), ())


def test_a_copy_in_memory_outlives_what_was_decoded() -> None:
    """A decoder keeps such a copy for a crop; libvips would not keep Python's bytes alive."""
    data = bytes(photograph(1_600, 1_200).jpegsave_buffer(Q=90))
    decoded = decode_jpeg(data, 2)
    assert decoded is not None
    kept = decoded.copy_memory()
    del decoded
    gc.collect()
    others = [bytes([255]) * (800 * 600 * 3) for _ in range(4)]
    assert greatest_difference(kept, opened(data, shrink=2)) == 0
    del others


@pytest.mark.parametrize("segment", [b"\xff\xfe\x00\x03x", b"\xff\xe1\x00\x09Exif\0\0x", b"\xff\xe5\x00\x02"])
def test_a_jpeg_of_very_many_segments_is_left_to_libvips(segment: bytes) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 99, 200)).save(file, "JPEG")
    plain = file.getvalue()

    def with_segments(count: int) -> bytes:
        return plain[:2] + segment * count + plain[2:]

    assert decode_jpeg(with_segments(20), 2) is not None
    assert decode_jpeg(with_segments(1_000), 2) is None


def test_a_jpeg_of_several_scans_is_left_to_libvips() -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 99, 200)).save(file, "JPEG")
    plain = file.getvalue()
    at = plain.index(b"\xff\xda")
    assert decode_jpeg(plain, 2) is not None
    for count in (2, 17):
        assert decode_jpeg(plain[:at] + plain[at:-2] * count + plain[-2:], 2) is None
    of_one_component = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    assert decode_jpeg(plain[:at] + of_one_component + plain[at + 14 :], 2) is None
