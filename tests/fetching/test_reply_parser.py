"""One reply, read from bytes that come in any pieces."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.fetching.bodies import BodyReader
from broker.fetching.errors import TooLarge, UpstreamFailed
from broker.fetching.reply_parser import MAX_HEAD_BYTES, ReplyHead, ReplyParser

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: a\r\nx-one: b\r\nEmpty:\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + WHOLE
OFFERED = WHOLE.replace(b"\r\n", b"\r\nUpgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\n", 1)  # Apache's
BARE_LF = WHOLE.replace(b"\r\n", b"\n")


def parser(*, is_head: bool = False, limit_bytes: int = 1_000) -> ReplyParser:
    return ReplyParser(lambda _: BodyReader("", limit_bytes), is_head=is_head)


def fed(raw: bytes, *cuts: int, **options: bool) -> ReplyParser:
    """A parser that got the bytes in pieces, cut at these places, for as long as it wants some."""
    reading = parser(**options)
    for start, end in zip((0, *cuts), (*cuts, len(raw)), strict=True):
        if not reading.is_complete:
            reading.feed(memoryview(raw)[start:end])
    return reading


@pytest.mark.parametrize("raw", [WHOLE, CHUNKED, CONTINUED, OFFERED, BARE_LF])
def test_a_reply_in_any_two_pieces_is_one_reply(raw: bytes) -> None:
    for cut in range(len(raw) + 1):
        reading = fed(raw, cut)
        assert (reading.head.status, b"".join(reading.body())) == (200, b"hello")
        assert (reading.is_complete, reading.is_reusable) == (True, True)


@given(st.lists(st.integers(0, len(CONTINUED)), max_size=8))
def test_a_reply_in_many_pieces_is_one_reply(cuts: list[int]) -> None:
    assert b"".join(fed(CONTINUED, *sorted(cuts)).body()) == b"hello"


def test_headers_are_in_lower_case_and_joined() -> None:
    assert fed(WHOLE).head == ReplyHead(200, {"content-length": "5", "x-one": "a, b", "empty": ""})


def test_trailers_and_informational_heads_are_no_headers() -> None:
    assert dict(fed(CHUNKED).head.headers) == {"transfer-encoding": "chunked"}
    assert "link" not in fed(CONTINUED).head.headers


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        WHOLE + b"more",
        WHOLE + WHOLE,
    ],
)
def test_a_connection_with_an_end_or_a_rest_is_not_used_again(raw: bytes) -> None:
    reading = fed(raw)
    assert (reading.is_complete, reading.is_reusable) == (True, False)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reading = fed(b"HTTP/1.1 200 OK\r\n\r\nhel", 10)
    reading.feed(memoryview(b"lo"))
    assert not reading.is_complete
    reading.end()
    assert (b"".join(reading.body()), reading.is_reusable) == (b"hello", False)


@pytest.mark.parametrize("raw", [b"", WHOLE[:30], WHOLE[:-1], CHUNKED[:-30], CONTINUED[:60]])
def test_a_reply_that_is_cut_off_is_none(raw: bytes) -> None:
    reading = fed(raw)
    with pytest.raises(UpstreamFailed):
        reading.end()


@pytest.mark.parametrize("status", [204, 304])
def test_what_has_no_body_has_none_whatever_it_says(status: int) -> None:
    reading = fed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert (reading.is_complete, reading.body()) == (True, ())


@pytest.mark.parametrize(
    ("head", "is_reusable"),
    [
        (b"204 X\r\n", True),
        (b"204 X\r\nContent-Length: 0\r\n", True),
        (b"204 X\r\nContent-Length: 5\r\n", False),
        (b"204 X\r\nTransfer-Encoding: chunked\r\n", False),
        (b"304 X\r\nContent-Length: 5\r\n", True),
        (b"103 X\r\n\r\nHTTP/1.1 204 X\r\n", True),
        (b"103 X\r\nContent-Length: 5\r\n\r\nHTTP/1.1 204 X\r\n", False),
        (b"103 X\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 204 X\r\n", False),
    ],
)
def test_a_connection_on_which_a_body_may_yet_come_is_not_used_again(head: bytes, is_reusable: bool) -> None:
    reading = fed(b"HTTP/1.1 %b\r\n" % head)
    assert (reading.is_complete, reading.is_reusable) == (True, is_reusable)


def test_the_reply_to_head_has_no_body_whatever_it_says() -> None:
    reading = fed(WHOLE[:-5], is_head=True)
    assert (reading.is_complete, reading.is_reusable, reading.body()) == (True, False, ())


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: a\r\n\r\n",
        b"HTTP/1.1 101 X\r\n\r\n",
        b"HTTP/1.1 099 X\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA\0B: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: x\0y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"220 ready\r\n",
    ],
)
@pytest.mark.parametrize("step", [1, 1_000])
def test_what_is_no_reply_is_refused(raw: bytes, step: int) -> None:
    reading = parser()
    with pytest.raises(UpstreamFailed):
        for start in range(0, len(raw), step):
            reading.feed(memoryview(raw)[start : start + step])


@pytest.mark.parametrize("step", [1_000, 1_000_000])
@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nX: %b" % (b"x" * MAX_HEAD_BYTES),
        b"HTTP/1.1 200 OK\r\n" + b"%b: x\r\n" % (b"x" * 1_024) * (MAX_HEAD_BYTES >> 10) + b"\r\n",
        b"HTTP/1.1 100 Continue\r\nX: %b\r\n\r\n" % (b"x" * 1_023) * (MAX_HEAD_BYTES >> 10),
        b"HTTP/1.1 200 %b" % (b"x" * MAX_HEAD_BYTES),
    ],
)
def test_a_head_is_bounded(part: bytes, step: int) -> None:
    reading = parser()
    with pytest.raises(UpstreamFailed):
        for start in range(0, len(part), step):
            reading.feed(memoryview(part)[start : start + step])


@pytest.mark.parametrize("step", [1_000, 50_000])
@pytest.mark.parametrize(
    "part",
    [
        b"0\r\nX: %b" % (b"x" * (MAX_HEAD_BYTES + 50_000)),
        b"0\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 4),
        b"5;x=%b" % (b"x" * (MAX_HEAD_BYTES + 50_000)),
    ],
    ids=["a long trailer", "many trailers", "a long extension of a chunk"],
)
def test_what_is_beside_a_body_is_bounded(part: bytes, step: int) -> None:
    """llhttp bounds nothing, and a trailer is kept until it ends."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" + part
    reading = parser()
    with pytest.raises(UpstreamFailed):
        for start in range(0, len(raw), step):
            reading.feed(memoryview(raw)[start : start + step])


def test_long_trailers_are_taken() -> None:
    raw = CHUNKED.removesuffix(b"\r\n") + b"X: %b\r\n\r\n" % (b"x" * 99_000)
    assert b"".join(fed(raw, 300, 50_000).body()) == b"hello"


def test_a_long_head_is_taken() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: %b\r\n\r\n" % (b"x" * 99_000)
    assert b"".join(fed(head + b"hello", 50_000).body()) == b"hello"


def test_what_the_reader_of_the_body_raises_comes_out() -> None:
    reading = parser(limit_bytes=4)
    with pytest.raises(TooLarge):
        reading.feed(memoryview(WHOLE))


def test_what_the_judge_of_the_head_raises_comes_out() -> None:
    def refuse(_: ReplyHead) -> BodyReader:
        raise TooLarge("too long by its head")

    with pytest.raises(TooLarge, match="by its head"):
        ReplyParser(refuse, is_head=False).feed(memoryview(WHOLE))


def test_a_body_that_nobody_wants_is_left_unread() -> None:
    reading = ReplyParser(lambda _: None, is_head=False)
    reading.feed(memoryview(WHOLE))
    assert (reading.is_complete, reading.is_reusable, reading.body()) == (True, False, ())


@pytest.mark.parametrize("limit_bytes", [4, 5])
def test_a_body_does_not_wait_for_the_collector(limit_bytes: int) -> None:
    """What it takes may be large, and a replica collects seldom."""
    gc.disable()
    try:
        reading = parser(limit_bytes=limit_bytes)
        try:
            reading.feed(memoryview(WHOLE))
        except TooLarge:
            assert limit_bytes == 4
        reading.close()
        kept = weakref.ref(reading)
        del reading
        assert kept() is None
    finally:
        gc.enable()


def test_single_bytes_are_not_kept_one_by_one() -> None:
    body = BodyReader("", 100_000)
    for _ in range(70_000):
        body.feed(b"x")
    parts = body.finish()
    assert (len(parts), b"".join(parts)) == (3, b"x" * 70_000)
