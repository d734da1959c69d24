"""What these programs share."""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

WIDTH, HEIGHT = 800, 600
QUALITY = 85
"""Of the result."""

Transform = Callable[[bytes, str], bytes]
"""From the source's bytes and `jpg` or `webp` to the result's."""


def serve_commands(version: str, transform: Transform, cpu_s: Callable[[], float]) -> None:
    """Obey until the input ends."""
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        _, file, format_, count = line.split()
        source, made = Path(file).read_bytes(), b""
        began_s = cpu_s()
        for _ in range(int(count)):
            made = transform(source, format_)
        print(json.dumps({"cpu_s": cpu_s() - began_s, "bytes": len(made)}), flush=True)


def own_cpu_s() -> float:
    """CPU seconds of this process, of threads that have ended too."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
