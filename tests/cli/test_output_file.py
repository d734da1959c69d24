"""Where commands write: files, links, FIFOs, devices, standard output."""

import errno
import os
import pty
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.cli.output_file import open_output

OLD, NEW = b"what was there", b"what is written"


def write(path: Path, mode: int = 0o666) -> None:
    with open_output(path, mode=mode) as target:
        target.write(NEW)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_file_has_its_mode_and_is_there_when_it_is_complete(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with open_output(path, mode=mode) as target:
        target.write(NEW)
        assert path.read_bytes() == OLD
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (NEW, mode)
    assert names(tmp_path) == ["a"]


def test_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.raises(LookupError), open_output(path) as target:
        target.write(NEW)
        raise LookupError
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("is_there", [True, False])
def test_link_stays_and_its_target_is_written(tmp_path: Path, is_there: bool) -> None:
    link, directory = tmp_path / "link", tmp_path / "other"
    directory.mkdir()
    if is_there:
        (directory / "a").write_bytes(OLD)
    (tmp_path / "middle").symlink_to(directory / "a")
    link.symlink_to("middle")
    write(link)
    assert (link.is_symlink(), (directory / "a").read_bytes()) == (True, NEW)
    assert names(directory) == ["a"]
    assert names(tmp_path) == ["link", "middle", "other"]


def test_loop_of_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=str(tmp_path / "loop")) as told:
        write(tmp_path / "loop")
    assert told.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", ["fifo", "link"])
def test_fifo_is_written_to(tmp_path: Path, name: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(fifo.read_bytes)
        write(tmp_path / name)
        assert reading.result() == NEW
    assert fifo.is_fifo()
    assert names(tmp_path) == ["fifo", "link"]


def test_device_is_written_to_and_a_terminal_gets_text_only() -> None:
    reader, terminal = pty.openpty()
    try:
        device = Path(os.ttyname(terminal))
        with pytest.raises(ValueError, match="no text for a terminal"):
            write(device)
        with open_output(device, is_text=True) as target:
            target.write(NEW)
        assert os.read(reader, 100) == NEW
        assert device.is_char_device()
    finally:
        os.close(reader)
        os.close(terminal)


@pytest.mark.parametrize("name", ["-", "/proc/self/fd/1", "link"])
def test_standard_output_has_several_names(
    name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("/proc/self/fd/1")  # where `/dev/stdout` leads
    write(Path(name))
    assert capfdbinary.readouterr().out == NEW
    assert names(tmp_path) == ["link"]


def test_full_disk_leaves_nothing_and_is_named(tmp_path: Path) -> None:
    """The last bytes are written when the file is closed, which fails as well."""
    path = tmp_path / "a"
    path.write_bytes(OLD)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"), open_output(path) as target:
            target.write(bytes(100))
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["a"]


def test_writing_that_fails_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError) as told, open_output(fifo) as target:
        os.close(reader)
        target.write(NEW)
    assert told.value.filename == str(fifo)
