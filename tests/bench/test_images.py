"""`bench.images`: what runs side by side, and what is made of the figures."""

import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from bench.child import Child
from bench.contenders import ROOT
from bench.images import crop, gpu, transform
from bench.images.instance import running_upstream, take_requests
from bench.images.memory import summarise
from bench.images.photographs import portrait_jpeg
from bench.images.processes import tree_cpu_s, tree_pss_mb
from bench.peers.install import PEERS, PINS
from bench.scenes import find_missed
from broker.images.decoding import read_header
from broker.images.faces.inference import Runtime
from broker.images.geometry import Size
from broker.images.jobs import DecodeLimits


@pytest.mark.parametrize("contender", ["ours", "direct", "pillow"])
def test_a_contender_transforms_and_tells_its_cpu_time(contender: str, tmp_path: Path) -> None:
    file = tmp_path / "photograph.jpg"
    file.write_bytes(portrait_jpeg(800, 600))
    with Child([sys.executable, "-m", f"bench.images.contenders.{contender}"], ROOT) as child:
        assert child.receive()["version"]
        for format_ in transform.FORMATS:
            child.send(f"run {file} {format_} 2")
            told = child.receive()
            assert told["cpu_s"] > 0
            assert told["bytes"] > 10_000


def test_the_photograph_has_the_size_asked_for() -> None:
    header = read_header(portrait_jpeg(1_200, 900), DecodeLimits())
    assert (header.size, header.type) == (Size(1_200, 900), "image/jpeg")


def test_the_upstream_counts_and_makes_equal_images_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"image")
    with running_upstream(tmp_path) as (upstream, address):
        url = f"http://{address}/a.jpg"
        assert httpx.get(f"{url}?n=1").content == b"image"
        assert httpx.get(f"{url}?salt=2").content == b"imagesalt=2"
        assert httpx.get(f"http://{address}/b.jpg").status_code == 404
        assert [take_requests(upstream), take_requests(upstream)] == [3, 0]


def test_what_is_slower_than_allowed_is_a_fault() -> None:
    slow = {"broker, jpg": {"of_libvips": 1.11}, "crop by face": {"of_the_parts": 1.0}}
    missed = find_missed(slow, transform.targets() | crop.targets())
    assert missed == ["broker, jpg: of_libvips is 1.11 instead of less than 1.1"]


def test_memory_is_compared_after_it_has_warmed_up() -> None:
    figures = summarise([(2.0 * size, float(size)) for size in (10, 50, 100, 100, 100, 100, 110, 110)])
    assert (figures["growth"], figures["most_MB"], figures["most_PSS_MB"]) == (1.1, 110, 220)


def test_libraries_that_nobody_else_has_open_any_more_are_no_growth() -> None:
    assert summarise([(120.0, 100.0)] * 6 + [(140.0, 100.0)] * 2)["growth"] == 1.0


def test_a_round_that_was_disturbed_is_no_median() -> None:
    rounds = [{"CPU_ms": 100.0}, {"CPU_ms": 180.0}, {"CPU_ms": 102.0}]
    assert crop.medians(rounds) == {"CPU_ms": 102.0}


def test_processes_are_weighed_with_their_children(tmp_path: Path) -> None:
    with running_upstream(tmp_path) as (upstream, _):
        pids = [upstream._process.pid]
        assert tree_cpu_s(pids) > 0
        assert tree_pss_mb(pids) > 1
    assert (tree_cpu_s(pids), tree_pss_mb(pids)) == (0, 0)


def test_a_machine_without_a_gpu_says_that_nothing_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "available_providers", lambda: ["CPUExecutionProvider"])
    assert gpu.measure_gpu(1) == ({}, [])
    assert capsys.readouterr().out == "GPU: not measured, because none is here\n"


def test_where_a_gpu_computes_the_whole_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the GPU, in whose place the CPU computes, with batches of its own."""
    net = gpu.load(Runtime(("CPUExecutionProvider",), (1, 2), 1))
    monkeypatch.setattr(gpu, "load", lambda _runtime: net)
    monkeypatch.setattr(gpu, "_BATCH", 2)
    monkeypatch.setattr(gpu, "available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(gpu, "_computes_on_gpu", lambda runtime: runtime.is_gpu)
    ((scene, figures),) = gpu.measure_gpu(1)[0].items()
    assert scene == "detection on a GPU"
    assert set(figures) == {
        "CPU_per_s",
        "one_by_one_per_s",
        "batched_per_s",
        "of_the_CPU",
        "share_of_a_request",
        "projected_per_s_of_16_cores",
    }
    assert min(figures.values()) > 0


@pytest.mark.parametrize(
    ("batch_per_s", "projected"),
    [
        pytest.param(1_000.0, 160.0, id="the cores decide"),
        pytest.param(40.0, 40.0, id="the GPU decides"),
    ],
)
def test_a_node_serves_what_the_slower_of_its_parts_can(batch_per_s: float, projected: float) -> None:
    figures = gpu.project(batch_per_s, cpu_per_s=10.0, other_ms=100.0)
    assert figures[f"projected_per_s_of_{gpu.CORES}_cores"] == projected
    assert figures["of_the_CPU"] == batch_per_s / 10


def test_peers_are_pinned_without_addresses() -> None:
    assert {"sharp", "imagor", "thumbor"} <= PEERS.keys()
    lock = (PINS / "sharp" / "package-lock.json").read_text()
    assert "://" not in lock
    assert [
        (name, package)
        for name, package in json.loads(lock)["packages"].items()
        if name and "integrity" not in package
    ] == []
    version = re.search(r"cshum/imagor (v\S+)", (PINS / "imagor" / "go.mod").read_text())
    assert version
    assert f"github.com/cshum/imagor {version[1]} h1:" in (PINS / "imagor" / "go.sum").read_text()
    pins = (PINS / "thumbor" / "requirements.txt").read_text()
    assert "://" not in pins
    assert re.search(r"^thumbor==\S+ \\\n +--hash=sha256:", pins, re.M)
