"""The page of a node: the metrics of all its processes, collected at each scrape.

A process that does not answer in time is on the page as not up; one that has ended is not on it. All are
asked at once, so a page takes as long as the slowest.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.clock import Clock
from broker.metrics import catalogue
from broker.metrics.catalogue import CATALOGUE, PROCESS_LABELS, Definition
from broker.metrics.exporter import DIRECTORY, SENT, short_path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ANSWER_S = 2.0
_LIMIT_BYTES = 4 << 20
_MOST_PROCESSES = 256

_log = logging.getLogger(__name__)

ProcessReplies = Mapping[tuple[str, str], Mapping[str, Any] | None]
"""What the processes told, by kind and number; None of one that did not answer."""


async def read_page(data_dir: Path, clock: Clock, parts: Mapping[str, str] | None = None) -> bytes:
    """The page in Prometheus' text format. Raises nothing: what cannot be read is not on it.

    Args:
        parts: of the product, as `/readyz` has them.
    """
    return render(await _ask_all(data_dir / DIRECTORY, clock), parts or {})


async def read_samples(data_dir: Path, clock: Clock, kind: str) -> list[tuple[str, list[str], Any]]:
    """What the processes of one kind tell: names, labels of their own, values. Raises nothing."""
    told = await _ask_all(data_dir / DIRECTORY, clock, f"{kind}.")
    samples = [sample for process in told.values() if process is not None for sample in process["samples"]]
    return [(name, labels, value) for name, labels, value in samples]


def render(told: ProcessReplies, parts: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The page of what the processes told, and of the parts as this process found them."""
    families = {definition.name: _family(definition) for definition in CATALOGUE}
    node = socket.gethostname()
    for place, process in sorted(told.items(), key=lambda each: each[0]):
        labels = (node, *place)
        _add(families, catalogue.UP, labels, 0 if process is None else 1)
        if process is None:
            continue
        _add(families, catalogue.INFO, (*labels, process["name"], process["version"]), 1)
        _add(families, catalogue.LAG, labels, process["lag_s"])
        for name, own, value in process["samples"]:
            definition = _DEFINITIONS.get(name)
            if definition is not None:  # a process of a newer version may know more
                _add(families, definition, (*labels, *own), value)
    for part, state in parts.items():
        _add(families, catalogue.READY, (node, "api", str(os.getpid()), part), int(state == "ok"))
    return generate_latest(_Fixed([family for family in families.values() if family.samples]))


_DEFINITIONS = {definition.name: definition for definition in CATALOGUE}


class _Fixed(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(definition: Definition) -> Metric:
    labels = (*PROCESS_LABELS, *definition.labels)
    if definition.kind == "counter":
        return CounterMetricFamily(definition.name, definition.text, labels=labels)
    if definition.kind == "gauge":
        return GaugeMetricFamily(definition.name, definition.text, labels=labels)
    return HistogramMetricFamily(definition.name, definition.text, labels=labels)


def _add(families: Mapping[str, Metric], definition: Definition, labels: tuple[str, ...], value: Any) -> None:
    family = families[definition.name]
    if isinstance(family, HistogramMetricFamily):
        bounds = (*map(str, definition.buckets), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(value[:-1]), strict=True)), value[-1])
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(labels, value)


async def _ask_all(directory: Path, clock: Clock, prefix: str = "") -> ProcessReplies:
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names are all that is wanted
    except OSError as error:
        _log.warning("metrics_not_read", extra={"cause": str(error)})
        return {}
    names = [name for name in names if name.startswith(prefix)][:_MOST_PROCESSES]
    answers = await asyncio.gather(*(_ask(directory, name, clock) for name in names))
    processes = {}
    for name, answer in zip(names, answers, strict=True):
        kind, _, number = name.rpartition(".")
        if kind and answer is not _GONE:
            processes[kind, number] = answer
    return processes


_GONE: Mapping[str, Any] = {}


async def _ask(directory: Path, name: str, clock: Clock) -> Mapping[str, Any] | None:
    """What one process tells; None when it does not answer, `_GONE` when it has ended."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.setblocking(False)
    try:
        async with asyncio.timeout(_ANSWER_S):
            with short_path(directory) as near:
                await asyncio.get_running_loop().sock_connect(caller, f"{near}/{name}")
            return await _read(caller, clock)
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            (directory / name).unlink()  # killed, and so left behind
        return _GONE
    except (OSError, EOFError, ValueError):  # TimeoutError is an OSError
        return None
    finally:
        caller.close()


async def _read(caller: socket.socket, clock: Clock) -> Mapping[str, Any]:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(caller, SENT.pack(int(clock.monotonic_s() * 1e9)))
    told = bytearray()
    while part := await loop.sock_recv(caller, 1 << 16):
        told += part
        if len(told) > _LIMIT_BYTES:
            raise ValueError("more than a process has to tell")
    answer: Mapping[str, Any] = orjson.loads(told)
    return answer
