"""BlurHash and ThumbHash by native code: what other implementations make, and what is refused."""

import blurhash
import pytest
import thash

from broker._native import blur_hash, thumb_hash

WIDTH, HEIGHT = 32, 24
SIZE = (WIDTH, HEIGHT)


def slope(alpha: int = 255) -> bytes:
    """Red grows to the right, green downwards, blue is at a corner."""
    return b"".join(
        bytes([x * 8, y * 10, 200 if x < 8 and y < 8 else 30, alpha])
        for y in range(HEIGHT)
        for x in range(WIDTH)
    )


def mean_of(made: str) -> list[int]:
    """The mean of a BlurHash, which four characters of it are."""
    return list(blurhash.decode(f"00{made[2:6]}", 1, 1).tobytes())


def paint(made: bytes) -> list[int]:
    """The bytes of a ThumbHash as overlays paint it."""
    _, _, values = thash.thumb_hash_to_rgba(made)
    return list(values)


# Made by the Python packages blurhash-python 1.2 (its authors' C code) and thash 1.2.
@pytest.mark.parametrize(
    ("components", "expected"),
    [((1, 1), "00H26:"), ((4, 3), "LxH26:2uw$X9mJWajxfAgMfmfTfl")],
)
def test_a_blurhash_is_that_of_its_authors(components: tuple[int, int], expected: str) -> None:
    made = blur_hash(slope(), SIZE, components)
    assert (made[:2], made[6:]) == (expected[:2], expected[6:])
    assert mean_of(made) == pytest.approx(mean_of(expected), abs=1)  # one rounds it up


@pytest.mark.parametrize(
    ("pixels", "size", "expected"),
    [
        (slope(), SIZE, "571a0a559a908777a089779988689877605106f878"),
        (slope(128), SIZE, "571a862c8c089087a0899968081665808f378c0a78a8888208"),
        (bytes([200, 30, 40, 255]), (1, 1), "565a2f9f5407f807878887808f8088f80787707008078700"),
    ],
)
def test_a_thumbhash_is_that_of_another_implementation(
    pixels: bytes, size: tuple[int, int], expected: str
) -> None:
    made = thumb_hash(pixels, size)
    assert len(made) == len(bytes.fromhex(expected))
    differences = [abs(a - b) for a, b in zip(paint(made), paint(bytes.fromhex(expected)), strict=True)]
    assert max(differences) <= 16, "its values have four bits, and are rounded otherwise"
    assert sum(differences) / len(differences) < 4


@pytest.mark.parametrize("size", [(100, 100), (3, 5), (5, 3)])
def test_what_is_made_can_be_read(size: tuple[int, int]) -> None:
    pixels = bytes([200, 30, 40, 255]) * size[0] * size[1]
    assert mean_of(blur_hash(pixels, size, (1, 1))) == pytest.approx([200, 30, 40], abs=1)
    seen = paint(thumb_hash(pixels, size))
    means = [sum(seen[channel::4]) / (len(seen) / 4) for channel in range(4)]
    assert means == pytest.approx([200, 30, 40, 255], abs=12)


@pytest.mark.parametrize(
    ("pixels", "size"),
    [
        (bytes(4), (0, 1)),
        (bytes(4), (1, 0)),
        (b"", (0, 0)),
        (bytes(404), (101, 1)),
        (bytes(404), (1, 101)),
        (bytes(3), (1, 1)),
        (bytes(5), (1, 1)),
        (bytes(12), (2, 2)),
    ],
)
def test_what_is_no_image_is_refused(pixels: bytes, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"."):
        blur_hash(pixels, size, (4, 3))
    with pytest.raises(ValueError, match=r"."):
        thumb_hash(pixels, size)


@pytest.mark.parametrize("components", [(0, 3), (4, 0), (10, 3), (4, 10)])
def test_components_out_of_range_are_refused(components: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="components"):
        blur_hash(slope(), SIZE, components)
