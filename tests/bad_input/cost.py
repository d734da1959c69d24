"""What it costs to read untrusted bytes, by their size: processor time and memory, against reading JSON.

Both are measured in this process and compared with `orjson` reading an ordinary text of the same size in the
same moment, so a busy machine does not change the verdict. What grows faster than its input fails at the
largest size at the latest: at 256 KiB a quadratic search takes thousands of times as long as reading.
"""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from broker.errors import BrokerError

SIZES = (64 << 10, 256 << 10)
HEAD_SIZES = (4 << 10, 16 << 10)  # of what is in a request's head, which the doors bound
WRITTEN_BYTES = 200  # where values are written again: `orjson` reserves 127 for each, and uses few
TIMES = 40  # as long as an ordinary text takes; the dearest is at 15
BYTES = 60  # for each byte of input; a list of empty objects has 27 once it is read
REPLY_BYTES = 16 << 10
_SLACK_S = 0.02  # a quadratic search of 256 KiB takes seconds
_SLACK_BYTES = 4 << 20
_RETRIES = 3


def ordinary(size: int) -> bytes:
    """JSON as well-behaved clients send it."""
    event = b'{"event":"Score#update","metadata":{"home":1,"away":2,"text":"goal"}}'
    return b'{"events":[' + b",".join([event] * (size // len(event))) + b"]}"


def require_cheap(
    read: Callable[[Any], object],
    make: Callable[[int], Any],
    sizes: Sequence[int] = SIZES,
    bytes_each: int = BYTES,
) -> None:
    """Assert that reading what `make` builds costs a small multiple of reading JSON, however much it is.

    Args:
        read: may refuse; the refusal must be short.
        make: the input of about so many bytes.
    """
    for size in sizes:
        plain = ordinary(size)
        sent = make(size)
        spent_s = _spent_s(read, sent)
        limit_s = TIMES * _spent_s(orjson.loads, plain) + _SLACK_S
        for _ in range(_RETRIES):  # others use the machine too
            if spent_s <= limit_s:
                break
            spent_s = min(spent_s, _spent_s(read, sent))
            limit_s = max(limit_s, TIMES * _spent_s(orjson.loads, plain) + _SLACK_S)
        assert spent_s <= limit_s, f"{size} bytes take {spent_s:.4f} s; {limit_s:.4f} s are allowed"
    peak = _peak_bytes(read, sent)  # of the largest
    assert peak <= bytes_each * size + _SLACK_BYTES, f"{size} bytes take {peak} of memory"


def refusal_of(read: Callable[[Any], object], sent: Any) -> BrokerError | None:
    """The error that the input is refused with, which must be short; None when it is taken."""
    refusal: BrokerError | None = None
    try:
        read(sent)
    except BrokerError as error:
        refusal = error
    assert refusal is None or len(orjson.dumps(refusal.body())) <= REPLY_BYTES
    assert len(str(refusal)) <= REPLY_BYTES
    return refusal


def _spent_s(read: Callable[[Any], object], sent: Any) -> float:
    """Processor seconds."""
    began_s = time.process_time()
    refusal_of(read, sent)
    return time.process_time() - began_s


def _peak_bytes(read: Callable[[Any], object], sent: Any) -> int:
    tracemalloc.start()
    try:
        refusal_of(read, sent)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
