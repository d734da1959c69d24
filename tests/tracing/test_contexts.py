"""The names of spans as text, from strangers and between our processes."""

import pytest

from broker.tracing.contexts import SpanName, find_sampled, trace_id_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def test_a_name_is_read_as_it_was_written() -> None:
    text = str(SpanName(TRACE, SPAN))
    assert text == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert find_sampled(text) == SpanName(TRACE, SPAN)
    assert trace_id_of(text) == TRACE


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_other_flags_play_no_part(flags: str) -> None:
    assert find_sampled(f"00-{TRACE}-{SPAN}-{flags}") == SpanName(TRACE, SPAN)


def test_a_later_version_may_have_more_fields() -> None:
    assert find_sampled(f"01-{TRACE}-{SPAN}-01-what-follows") == SpanName(TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01 ",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 1_000}",
        f"\u0660\u0660-{TRACE}-{SPAN}-01",
    ],
)
def test_what_names_no_sampled_span_is_none(text: str) -> None:
    assert find_sampled(text) is None
