"""The names of spans as text: the value of the header `traceparent` (W3C Trace Context, section 3.2).

Between our processes only sampled ones travel.
"""

import re
from typing import NamedTuple

_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LONGEST = 512  # characters; a version after the first may add fields
_FIRST_VERSION = "00"
_SAMPLED = 1  # of the flags


class SpanName(NamedTuple):
    """A sampled span: 32 digits for its trace, 16 for itself, hexadecimal in lower case."""

    trace_id: str
    span_id: str

    def __str__(self) -> str:
        return f"{_FIRST_VERSION}-{self.trace_id}-{self.span_id}-{_SAMPLED:02x}"


def find_sampled(text: str) -> SpanName | None:
    """The span that untrusted text names; None for what is malformed, or not sampled."""
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if not int(flags, 16) & _SAMPLED or (version == _FIRST_VERSION and more):
        return None
    return SpanName(trace_id, span_id)


def trace_id_of(context: str) -> str:
    """The id of the trace of a context that `SpanName` wrote, for logs."""
    return context.split("-", 2)[1]
