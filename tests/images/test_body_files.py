"""Sources as open files: what is passed to a decoder stays as it was, and is closed when nobody needs it."""

import gc
import mmap
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from broker.images.body_files import BodyFile, map_body
from broker.images.disk_cache import DiskCache


class Head(msgspec.Struct):
    """What a test stores."""

    name: str


def passed(body: BodyFile) -> memoryview:
    """What a decoder has of it."""
    return map_body(os.dup(body.descriptor), body.offset, body.size_bytes)


def stored(directory: Path, body: bytes) -> tuple[DiskCache[Head], BodyFile]:
    cache = DiskCache(directory, 1 << 20, Head)
    cache.write("a", Head("x"), body)
    found = cache.open("a")
    assert found is not None
    assert found[0] == Head("x")
    return cache, found[1]


@pytest.mark.parametrize("size", [0, 1, 4_095, 4_096, 100_000])
def test_the_other_end_gets_all_bytes_and_no_more(tmp_path: Path, size: int) -> None:
    body = os.urandom(size)
    cache, on_disk = stored(tmp_path, body)
    parts = [body[:10], b"", body[10:]]
    written = cache.write_and_open("a", Head("x"), parts)
    assert written is not None
    for each in (on_disk, written, BodyFile.of_parts(parts)):
        assert (each.size_bytes, each.read(), bytes(passed(each))) == (size, body, body)
    assert cache.read("a") == (Head("x"), body)


def test_what_is_open_stays_as_it_was(tmp_path: Path) -> None:
    cache, body = stored(tmp_path, b"before")
    cache.write("a", Head("x"), b"after!")
    assert (body.read(), bytes(passed(body))) == (b"before", b"before")
    assert cache.remove("a")
    assert bytes(passed(body)) == b"before"


def test_more_parts_than_one_call_takes_are_written(tmp_path: Path) -> None:
    parts = [b"%d," % at for at in range(3_000)]
    cache, _ = stored(tmp_path, b"before")
    assert cache.write_and_open("a", Head("y"), parts) is not None
    assert cache.read("a") == (Head("y"), b"".join(parts))
    assert BodyFile.of_parts(parts).read() == b"".join(parts)


def test_a_file_of_the_cache_cannot_be_changed(tmp_path: Path) -> None:
    cache, kept = stored(tmp_path, b"body")
    written = cache.write_and_open("b", Head("x"), [b"body"])
    assert written is not None
    for body in (kept, written):
        with pytest.raises(OSError, match="descriptor"):  # that is not open for writing
            os.pwrite(body.descriptor, b"x", body.offset)


def test_what_the_disk_does_not_take_is_not_open(tmp_path: Path) -> None:
    cache, _ = stored(tmp_path / "cache", b"body")
    shutil.rmtree(tmp_path / "cache")
    assert not cache.has("a")
    (tmp_path / "cache").write_text("a file in its place")
    assert cache.write_and_open("a", Head("x"), [b"body"]) is None
    assert not cache.has("a")


def test_a_file_of_memory_cannot_be_changed() -> None:
    body = BodyFile.of_parts([b"body"])
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(body.descriptor, b"x", 0)
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(body.descriptor, 4, mmap.MAP_SHARED, mmap.PROT_WRITE)


def test_a_file_is_closed_when_nobody_needs_it(tmp_path: Path) -> None:
    _, body = stored(tmp_path, b"body")
    descriptor, seen = body.descriptor, passed(body)
    del body
    gc.collect()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    assert bytes(seen) == b"body"


def test_a_file_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    _, body = stored(tmp_path, b"body")
    (file,) = tmp_path.glob("*/*")
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(OSError, match="cut off"):
        body.read()
