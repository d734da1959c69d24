"""Decoders forked from a process that has loaded everything: what they share, what its end costs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from broker.images.forks import DecoderConfig, DecoderForks, ForkedDecoder
from tests.images.decoder_processes import decoders_of, fork_servers_of

CONFIG = DecoderConfig(memory_bytes=1 << 30, job_s=10.0, kept_idle_s=10.0, shrinks_fast=True)

FIRST_IMAGES = """
import sys
from broker.images import fork_server
fork_server.load()
shared = set(sys.modules)
import pyvips
from broker.images.decoding import check_image
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import preview, render
image = pyvips.Image.black(400, 300, bands=3).copy(interpretation="srgb")
image.set_type(pyvips.GValue.gstr_type, "exif-ifd0-Artist", "somebody")
for source in ("jpg", "png", "webp", "gif"):
    data = memoryview(image.write_to_buffer(f".{source}"))
    for result in ("jpg", "png", "webp", "gif"):
        checked = check_image(data, DecodeLimits(), shrinks_fast=True)
        render(checked, parse_options(f"w=100,h=100,fit=crop,f={result}"), ())
        render(checked, parse_options(f"w=100,f={result}"), ())
    preview(checked)
print(*sorted(set(sys.modules) - shared))
"""

Fork = Callable[[], ForkedDecoder]


@pytest.fixture
def forks() -> DecoderForks:
    return DecoderForks(CONFIG)


@pytest.fixture
def fork(forks: DecoderForks) -> Iterator[Fork]:
    """Forks decoders; a test that fails leaves none behind."""
    forked: list[ForkedDecoder] = []

    def fork_one() -> ForkedDecoder:
        forked.append(forks.fork())
        return forked[-1]

    try:
        yield fork_one
    finally:
        forks.close()
        for decoder in forked:
            decoder.end()


def decoders() -> list[psutil.Process]:
    return decoders_of(os.getpid())


def servers() -> list[psutil.Process]:
    return fork_servers_of(os.getpid())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def addresses_of(process: psutil.Process) -> set[str]:
    """Where the process has its libraries; they are mapped at other addresses in each program that starts."""
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "libvips" in line}


def test_what_a_decoder_is_told_comes_back_from_words() -> None:
    assert DecoderConfig.of_words(CONFIG.to_words()) == CONFIG


def test_no_decoder_loads_code_for_its_first_images() -> None:
    """What one loads is memory of its own; they share what is loaded before."""
    loaded = subprocess.run(
        [sys.executable, "-c", FIRST_IMAGES], capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout == "\n"


def test_decoders_come_from_one_process_until_one_of_them_has_crashed(
    forks: DecoderForks, fork: Fork
) -> None:
    first, second = fork(), fork()
    (before,) = servers()
    one, two = (addresses_of(process) for process in decoders())
    assert one
    assert one == two
    forks.exchange(first)
    forks.exchange(second)  # of the same server
    fork()
    (after,) = set(servers()) - {before}
    (new,) = after.children()
    assert not addresses_of(new) & one
    assert len(decoders()) == 3, "whoever works for another image goes on"
    for decoder in (first, second):
        decoder.end()
    wait_until(lambda: servers() == [after])


def test_a_decoder_says_how_it_ended(fork: Fork) -> None:
    decoder = fork()
    assert decoder.wait(0) is None
    (process,) = decoders()
    process.send_signal(signal.SIGPROF)
    assert decoder.wait(60) == -signal.SIGPROF
    assert not decoder.is_alive()


def test_a_decoder_whose_connection_ends_does_so_too(fork: Fork) -> None:
    decoder = fork()
    decoder.connection.close()
    assert decoder.wait(60) == 0


def test_a_server_is_as_before_when_its_decoders_have_ended(fork: Fork) -> None:
    kept = fork()
    (server,) = servers()
    assert server.num_threads() == 1, "only a process with one thread may fork and go on"
    before = server.num_fds()
    for _ in range(20):
        fork().end()
    wait_until(lambda: server.num_fds() == before)  # it tells of an end before it forgets the decoder
    assert (len(decoders()), servers()) == (1, [server])
    kept.end()
    assert not decoders()


def test_a_decoder_holds_no_descriptor_of_another_one(fork: Fork) -> None:
    for _ in range(3):
        fork()
    # A new one first closes what it has of the others.
    wait_until(lambda: len({process.num_fds() for process in decoders()}) == 1)


def test_the_next_decoder_comes_from_a_new_server_if_one_was_killed(fork: Fork) -> None:
    decoder = fork()
    (server,) = servers()
    server.kill()
    assert decoder.wait(60) is not None
    decoder.end()
    assert fork().is_alive()
    assert server not in servers()
    assert len(decoders()) == 1


def test_decoders_of_a_server_that_hangs_are_ended(fork: Fork) -> None:
    decoder = fork()
    (server,), (process,) = servers(), decoders()
    server.suspend()
    decoder.end()
    assert not decoder.is_alive()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    assert fork().is_alive()


def test_closing_ends_all_at_once(forks: DecoderForks, fork: Fork) -> None:
    forked = [fork(), fork()]
    forks.exchange(forked[0])
    forked.append(fork())
    forks.close()
    assert None not in [decoder.wait(60) for decoder in forked]
    assert not servers()


def test_closing_ends_a_fork_that_waits_for_a_server_that_hangs(forks: DecoderForks, fork: Fork) -> None:
    fork()
    (server,) = servers()
    server.suspend()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fork)
        wait_until(waiting.running)
        forks.close()
        assert isinstance(waiting.exception(60), OSError)
    assert not servers()


def test_no_decoder_outlives_a_user_that_is_killed() -> None:
    program = (
        "import time\n"
        "from broker.images.forks import DecoderConfig, DecoderForks\n"
        f"forks = DecoderForks({CONFIG!r})\n"
        "decoder = forks.fork()\n"
        "print('forked', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as user:
        try:
            assert user.stdout is not None
            assert user.stdout.readline() == b"forked\n"
            left = fork_servers_of(user.pid) + decoders_of(user.pid)
            assert len(left) == 2
        finally:
            user.kill()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
