"""The cache on disk: whole entries or none, a bound, and no trust in what lies there."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

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
