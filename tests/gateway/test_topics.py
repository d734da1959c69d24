import asyncio

import pytest

from broker.errors import NotFound
from broker.gateway.topics import Followed, FollowedTopics
from broker.owners.protocol import Attributes, Entry, EntryKind
from tests.gateway.ports import MemoryFeed, MemoryLogs, attributes, gone, push, settle

pytestmark = pytest.mark.anyio
TOPIC = "demo/program/final"


class Bench:
    def __init__(self) -> None:
        self.logs = MemoryLogs()
        self.changes: list[tuple[str, Attributes, Attributes]] = []
        self.topics = FollowedTopics(self.logs, self.note)
        self.feed = MemoryFeed(self.topics.take_entries)
        self.topics.use(self.feed)

    def note(self, followed: Followed, before: Attributes, now: Attributes) -> None:
        self.changes.append((followed.topic, before, now))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_log_begins_where_the_owner_said(bench: Bench) -> None:
    bench.feed.add(TOPIC, 41, public=False)
    followed = await bench.topics.open(TOPIC)
    assert bench.logs.head(TOPIC) == ("e1", 41, 41)
    assert not bench.logs.logs[TOPIC].public
    assert bench.topics.find(TOPIC) is followed
    await bench.topics.close()


async def test_many_who_open_make_one_call(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await asyncio.gather(*(bench.topics.open(TOPIC) for _ in range(10)))
    await bench.topics.open(TOPIC)
    assert bench.feed.calls == [f"follow {TOPIC}"]
    await bench.topics.close()


async def test_entries_that_come_while_opening_are_kept(bench: Bench) -> None:
    bench.feed.add(TOPIC, 3)
    bench.feed.gate = asyncio.Event()
    opening = asyncio.create_task(bench.topics.open(TOPIC))
    await settle()
    bench.feed.tell(TOPIC, push(4), push(5))
    assert bench.topics.find(TOPIC) is None
    bench.feed.gate.set()
    await opening
    bench.feed.tell(TOPIC, push(6))
    assert bench.logs.logs[TOPIC].told == [("event", 4), ("event", 5), ("event", 6)]
    await bench.topics.close()


async def test_unknown_topic_is_not_found_and_forgotten(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.topics.open(TOPIC)
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC)
    assert bench.logs.head(TOPIC) is not None
    await bench.topics.close()


async def test_attributes_change_at_their_place(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, push(1), attributes(public=False, project_id="news"), push(2))
    assert [seq for _, seq in bench.logs.logs[TOPIC].told] == [1, 2]
    assert not bench.logs.logs[TOPIC].public
    followed = bench.topics.find(TOPIC)
    assert followed is not None
    assert followed.attributes == Attributes(False, "news")
    assert bench.changes[-1] == (TOPIC, Attributes(True, None), Attributes(False, "news"))
    await bench.topics.close()


async def test_idle_topic_is_closed_and_left(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC)
    assert bench.topics.close_if_idle(TOPIC)
    await settle()
    assert bench.logs.head(TOPIC) is None
    assert bench.feed.calls == [f"follow {TOPIC}", f"unfollow {TOPIC}"]
    await bench.topics.close()


async def test_subscriber_of_the_last_moment_keeps_the_topic(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC)
    bench.logs.logs[TOPIC].subscribers = 1
    assert not bench.topics.close_if_idle(TOPIC)
    bench.feed.tell(TOPIC, push(1))
    assert bench.logs.logs[TOPIC].told == [("event", 1)]
    await bench.topics.close()


async def test_pinned_topic_is_kept_until_unpinned(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC, pin="channel")
    assert not bench.topics.close_if_idle(TOPIC)
    bench.topics.unpin(TOPIC, "channel")
    assert bench.logs.head(TOPIC) is None
    await bench.topics.close()


async def test_opening_again_waits_until_the_feed_has_let_go(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    await bench.topics.open(TOPIC)
    bench.feed.gate = asyncio.Event()
    assert bench.topics.close_if_idle(TOPIC)
    opening = asyncio.create_task(bench.topics.open(TOPIC))
    await settle()
    assert bench.feed.calls == [f"follow {TOPIC}", f"unfollow {TOPIC}"]
    bench.feed.gate.set()
    await opening
    assert bench.feed.calls[-1] == f"follow {TOPIC}"
    assert TOPIC in bench.feed.followed
    await bench.topics.close()


async def test_program_that_is_gone_ends_its_log(bench: Bench) -> None:
    bench.feed.add(TOPIC, 1, project_id="news")
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, push(2), gone(2), push(3))
    assert bench.logs.ended[0].told == [("event", 2), ("programDeleted", 2)]
    assert bench.topics.find(TOPIC) is None
    assert bench.changes[-1][2] == Attributes(True, None)
    await settle()
    assert bench.feed.calls[-1] == f"unfollow {TOPIC}"
    await bench.topics.close()


async def test_program_made_again_has_a_log_of_its_own(bench: Bench) -> None:
    bench.feed.add(TOPIC, 1)
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, gone(1))
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, push(2))
    assert bench.logs.logs[TOPIC].told == [("event", 2)]
    assert TOPIC in bench.feed.followed
    await bench.topics.close()


async def test_program_followed_from_its_start_has_its_first_pushes(bench: Bench) -> None:
    bench.feed.add(TOPIC, 3)
    await bench.topics.open(TOPIC, from_start=True)
    bench.feed.tell(TOPIC, push(4))
    assert [seq for _, seq in bench.logs.logs[TOPIC].told] == [1, 2, 3, 4]
    await bench.topics.close()


async def test_start_that_is_lost_is_left_out(bench: Bench) -> None:
    bench.feed.add(TOPIC, 3)
    bench.feed.floor = 1
    await bench.topics.open(TOPIC, from_start=True)
    assert bench.logs.head(TOPIC) == ("e1", 3, 3)
    await bench.topics.close()


async def test_gap_is_repaired_from_where_the_log_stands(bench: Bench) -> None:
    bench.feed.add(TOPIC, 1)
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, push(3))
    await settle()
    assert bench.feed.calls[1:] == [f"unfollow {TOPIC}", f"follow {TOPIC}"]
    bench.feed.tell(TOPIC, push(2), push(3))
    assert [seq for _, seq in bench.logs.logs[TOPIC].told] == [2, 3]
    await bench.topics.close()


async def test_gap_over_a_lost_epoch_tells_viewers_to_read_again(bench: Bench) -> None:
    bench.feed.add(TOPIC, 1)
    await bench.topics.open(TOPIC)
    head = bench.feed.heads[TOPIC]
    bench.feed.heads[TOPIC] = type(head)("e2", 7, head.attributes)
    bench.feed.tell(TOPIC, push(8, "e2"))
    await settle()
    assert bench.logs.logs[TOPIC].told == [("historyReplaced", 7)]
    assert bench.logs.head(TOPIC) == ("e2", 7, 7)
    await bench.topics.close()


async def test_watcher_hears_what_was_appended(bench: Bench) -> None:
    bench.feed.add(TOPIC)
    heard: list[int] = []
    bench.topics.watch(TOPIC, "test", lambda entries: heard.extend(entry.seq for entry in entries))
    await bench.topics.open(TOPIC)
    bench.feed.tell(TOPIC, push(1), Entry(EntryKind.NOTICE, "e1", 0, "program", b"{}"))
    assert heard == [1, 0]
    await bench.topics.close()
