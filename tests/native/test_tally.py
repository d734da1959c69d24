"""The tally of answers as Python meets it; what it counts is proved in `native/core/src/answers`."""

import threading

import pytest

from broker._native import Tally, pack_answer, pack_impression, pack_session

KEY = bytes(range(16))


def answer(visitor: str, *indexes: int) -> bytes:
    return pack_answer(KEY, 1, visitor, indexes)


def test_answers_are_counted_once():
    tally = Tally()
    batch = answer("ann", 2) + answer("ben", 0) + answer("ann", 1)
    outcomes, news = tally.apply(batch, allow_change=False)
    assert outcomes == b"\1\1\0"
    assert news == answer("ann", 2) + answer("ben", 0)
    assert tally.totals() == [1, 0, 1]
    assert tally.voters == 2


def test_an_answer_may_change_where_that_is_allowed():
    tally = Tally()
    tally.apply(answer("ann", 2), allow_change=False)
    assert tally.apply(answer("ann", 0, 1), allow_change=True) == (b"\1", answer("ann", 0, 1))
    assert tally.totals() == [1, 1, 0]


def test_impressions_count_each_time_and_are_stored_once():
    tally = Tally()
    shown = pack_impression(KEY, 1, "ann")
    session = pack_session(KEY, 1, "s")
    assert tally.apply(shown + shown + session + session, allow_change=False) == (
        b"\1\1\0\0",
        shown + session,
    )
    assert (tally.impressions, tally.visitors, tally.sessions, tally.voters) == (2, 1, 1, 0)


def test_loaded_news_make_an_equal_tally():
    tally, loaded = Tally(), Tally()
    for indexes in ((3,), (0, 2), (1,)):
        _, news = tally.apply(answer("ann", *indexes), allow_change=True)
        loaded.load(news)
    loaded.impressions = 7
    assert (loaded.totals(), loaded.voters, loaded.impressions) == ([0, 1, 0, 0], 1, 7)
    assert tally.totals() == loaded.totals()


def test_a_malformed_batch_is_refused_with_its_offset():
    tally = Tally()
    batch = answer("ann", 2) + answer("ben", 0)[:-1]
    with pytest.raises(ValueError, match="the record at offset 9 is truncated"):
        tally.apply(batch, allow_change=False)
    with pytest.raises(ValueError, match="offset 9"):
        tally.load(batch)
    assert tally.voters == 0


# Python's own hash would do for none of these: the records are stored. Made with another implementation.
def test_records_have_the_bytes_that_are_stored():
    poll = 0x0102030405060708
    hashes = {
        pack_impression(KEY, poll, "Zoë"): (b"\0", 0x4D56AAC0C3B25CB7),
        pack_session(KEY, poll, "Zoë"): (b"\1", 0x81DF6100FDF9C3EC),
        pack_answer(KEY, poll, "Zoë", [200]): (b"\xa2\6", 0xB800424BFD257D91),
        pack_answer(KEY, poll, "Zoë", [200, 7]): (b"\x0b\7\xc8\1", 0xB800424BFD257D91),
    }
    for record, (head, number) in hashes.items():
        assert record == head + number.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        ([], "must not be empty"),
        ([1000], "0 to 999, not 1000"),
        ([-1], "0 to 999, not -1"),
        ([70_000], "0 to 999, not 70000"),
        ([4, 2, 4], "4 must not be repeated"),
    ],
)
def test_indexes_of_no_answer_are_refused(indexes, message):
    with pytest.raises(ValueError, match=message):
        pack_answer(KEY, 1, "ann", indexes)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_key_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match=f"key must be 16 bytes, not {length}"):
        pack_session(bytes(length), 1, "s")


def test_threads_take_turns():
    tally = Tally()
    batch = b"".join(answer(f"visitor {number}", 1) for number in range(5_000))
    counted: list[int] = []

    def apply() -> None:
        outcomes, _ = tally.apply(batch, allow_change=False)
        counted.append(sum(outcomes))

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert tally.voters in (0, 5_000)
    for thread in threads:
        thread.join()
    assert sorted(counted) == [0, 0, 0, 5_000]
    assert tally.memory_bytes < 16 * 5_000
