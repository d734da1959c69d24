"""The cache on disk: whole entries or none, a bound, and no trust in what lies there."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from broker.images.body_files import digest_of_parts
from broker.images.disk_cache import DiskCache


class Head(msgspec.Struct):
    """What a test stores."""

    name: str


def open_cache(path: Path, max_bytes: int = 1 << 20) -> DiskCache[Head]:
    return DiskCache(path / "cache", max_bytes, Head)


def files(path: Path) -> list[Path]:
    return sorted((path / "cache").glob("*/*"))


def test_an_entry_is_found_by_its_key_by_anybody(tmp_path: Path) -> None:
    open_cache(tmp_path).write("a", Head("x"), b"body")
    assert open_cache(tmp_path).read("a") == (Head("x"), b"body")
    assert open_cache(tmp_path).read("b") is None


def test_the_last_one_written_counts(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"1")
    cache.write("a", Head("y"), b"")
    assert cache.read("a") == (Head("y"), b"")
    assert cache.remove("a")
    assert not cache.remove("a")
    assert cache.read("a") is None


def test_without_room_nothing_is_kept_or_found(tmp_path: Path) -> None:
    open_cache(tmp_path).write("before", Head("x"), b"body")
    cache = open_cache(tmp_path, max_bytes=0)
    assert not cache.has("before")
    assert cache.read("before") is None
    cache.write("a", Head("x"), b"body")
    assert cache.write_and_open("b", Head("x"), [b"body"]) is None
    assert len(files(tmp_path)) == 1
    assert cache.clear() == 1


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\1\x80rest"])
def test_what_cannot_be_read_is_a_miss(tmp_path: Path, data: bytes) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"body")
    (file,) = files(tmp_path)
    file.write_bytes(data)
    assert cache.read("a") is None
    cache.write("a", Head("x"), b"body")
    assert cache.read("a") is not None


def test_an_entry_that_a_crash_of_the_machine_cut_off_is_a_miss(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"body")
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for data in [*(whole[:end] for end in range(len(whole))), whole + b"y", bytes(len(whole))]:
        file.write_bytes(data)
        assert cache.read("a") is None, data
    file.write_bytes(whole)
    assert cache.read("a") == (Head("x"), b"body")


def body_of(cache: DiskCache[Head], opens: bool) -> bytes | None:
    if opens:
        opened = cache.open("a")
        return None if opened is None else opened[1].read()
    found = cache.read("a")
    return None if found is None else found[1]


@pytest.mark.parametrize("digest_of", [None, lambda head: head.name], ids=["checksum", "digest"])
@pytest.mark.parametrize("opens", [False, True], ids=["read", "opened"])
def test_a_damaged_entry_is_a_miss_removed_and_told(
    tmp_path: Path, digest_of: Callable[[Head], str] | None, opens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20, Head, digest_of)
    cache.write("a", Head(digest_of_parts([b"body"])), b"body")
    assert body_of(cache, opens) == b"body"
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    # The first four bytes are the name of the format.
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(4, len(whole))]
    zeroed = [whole[:at] + bytes(len(whole) - at) for at in range(0, len(whole), 4)]
    for damaged in flipped + zeroed:
        file.write_bytes(damaged)
        caplog.clear()
        assert body_of(cache, opens) is None, damaged
        assert [record.message for record in caplog.records] == ["image_cache_damaged"]
        assert not files(tmp_path)


def test_a_file_that_is_damaged_after_it_was_found_to_be_good_is_a_miss(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"body")
    for _ in range(2):
        assert cache.open("a") is not None
    (file,) = files(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"!")
    assert cache.open("a") is None


def test_an_entry_of_another_version_is_a_miss_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"body")
    (file,) = files(tmp_path)
    head = msgspec.msgpack.encode(Head("x"))
    file.write_bytes(struct.pack(">IQ", len(head), 20) + head + bytes(20))  # as it was before checksums
    assert cache.read("a") is None
    assert cache.remove_where(lambda _: True) == 0
    assert not caplog.records
    assert file.exists()
    cache.write("a", Head("x"), b"body")
    assert cache.read("a") == (Head("x"), b"body")


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, max_bytes=100_000)
    for at in range(10):
        cache.write(str(at), Head("x"), bytes(9_000))
        os.utime(max(files(tmp_path), key=lambda path: path.stat().st_mtime), (at, at))
    assert cache.read("0") is not None  # this renews it
    cache.write("10", Head("x"), bytes(9_000))
    cache.write("11", Head("x"), bytes(9_000))
    swept = cache.sweep()
    assert swept.size_bytes <= 100_000
    assert cache.read("0") is not None
    assert cache.read("11") is not None
    assert cache.read("1") is None


def test_a_sweep_takes_what_a_dead_process_left(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.write("a", Head("x"), b"body")
    (entry,) = files(tmp_path)
    old, new = entry.parent / "old.partial", entry.parent / "new.partial"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert cache.sweep().entries == 1
    assert files(tmp_path) == sorted([entry, new])


def test_everything_is_forgotten_at_once(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    for at in range(3):
        cache.write(str(at), Head("x"), b"body")
    assert cache.clear() == 3
    assert not files(tmp_path)


def test_a_disk_that_cannot_be_written_is_a_miss(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file in its place")
    cache.write("a", Head("x"), b"body")
    assert cache.read("a") is None


WRITER = """
import sys
from pathlib import Path
from tests.images.test_disk_cache import Head, open_cache
cache = open_cache(Path(sys.argv[1]), 200_000)
for at in range(300):
    key = str(at % 7)
    cache.write(key, Head(key), key.encode() * 10_000)
    found = cache.read(key)
    assert found is None or found == (Head(key), key.encode() * 10_000), found
"""


def test_processes_that_write_the_same_keys_never_see_half_an_entry(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    ends = [(writer.wait(60), writer.stderr.read() if writer.stderr else b"") for writer in writers]
    for writer in writers:
        assert writer.stderr is not None
        writer.stderr.close()
    assert ends == [(0, b"")] * 3
