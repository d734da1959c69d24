"""The service's way: a process that decodes, spoken to as a replica does. Both processes count."""

import asyncio
from functools import lru_cache

import psutil

from bench.images.contenders.command import HEIGHT, WIDTH, serve_commands
from broker.images.body_files import BodyFile
from broker.images.jobs import DecodeLimits, Job
from broker.images.options import parse_options
from broker.images.workers import WorkerConfig, Workers


def main() -> None:
    """Serve until the input ends."""
    workers = Workers(WorkerConfig(processes=1, jobs=1_000_000))

    @lru_cache(1)  # a source is an open file; the others have it in memory, too
    def opened(source: bytes) -> BodyFile:
        return BodyFile.of_parts([source])

    with asyncio.Runner() as runner:

        def transform(source: bytes, format_: str) -> bytes:
            options = parse_options(f"w={WIDTH},h={HEIGHT},f={format_}")
            job = Job("render", DecodeLimits(), options)
            _, made = runner.run(workers.run(job, opened(source)))
            return made

        serve_commands("this", transform, tree_cpu_s)
        runner.run(workers.close())


def tree_cpu_s() -> float:
    """CPU seconds of this process and of all that it has started."""
    this = psutil.Process()
    times = [one.cpu_times() for one in (this, *this.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


if __name__ == "__main__":
    main()
