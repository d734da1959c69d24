"""`bench.capacity`: the arithmetic against what was computed by hand, and what its figures come from."""

import re
from pathlib import Path

import pytest

from bench.__main__ import PARTS
from bench.capacity import command
from bench.capacity.check import Comparison, compare_recorded
from bench.capacity.constants import STANDING, Constants, ConstantsError
from bench.capacity.feeding import Load, measure_feeding
from bench.capacity.model import Plan, Use, count_fed, delivery_cpu_us, idle_cpu_us, plan, wire_bytes
from bench.capacity.published import compare
from bench.capacity.report import find_limits
from bench.capacity.scene import SCENES, Hardware, OptionError, Scene
from bench.socket_votes import build_votes
from broker.owners.calls import OWNER_CALLS
from broker.owners.protocol import Entry, EntryKind
from broker.owners.sessions import EntryBatch, PollReply
from broker.settings import Settings

ROOT = Path(__file__).parents[2]
ROUND = {
    "delivery_cpu_us": 5,
    "small_delivery_cpu_us": 10,
    "idle_cpu_us": 1,
    "alive_cpu_us": 9,
    "connect_cpu_us": 0,
    "join_cpu_us": 10,
    "tls_delivery_cpu_us": 2,
    "viewer_bytes": 2_000,
    "node_bytes": 1_000_000_000,
    "owner_event_cpu_us": 50,
    "replica_event_cpu_us": 150,
    "postgres_event_cpu_us": 25,
    "feed_cpu_us": 100,
    "follow_cpu_us": 200,
    "relay_cpu_us": 300,
    "relay_from": 64,
}
CONSTANTS = Constants.read().measured(ROUND, "the test")
HARDWARE = Hardware(cores=8, memory_gb=64, gbit_per_s=10, postgres_connections=500, busy=0.5)
ONE = Scene(1_000_000, events_per_s=2, join_s=100, tls=False, alive=False)


def use_of(resource: str, found: Plan) -> Use:
    return next(use for use in found.uses if use.resource == resource)


def test_one_program_needs_the_nodes_that_were_computed_by_hand() -> None:
    found = plan(ONE, HARDWARE, CONSTANTS)
    # 2,000,000 deliveries/s of 5 µs, 1,000,000 viewers of 1 µs, 10,000 joins/s of 10 µs: 11.1 cores.
    # A node has 8 less 0.0004, half of which may be used: 2.8 nodes.
    assert (found.nodes, found.decided_by) == (3, "processors, arrival")
    # And 3 nodes that follow 2 events/s of 200 µs, and 2 events/s of 50, 3 times 100, and 150 µs.
    assert found.cores == pytest.approx(11.1 + 3 * 0.0004 + 0.001)
    # 2,000 bytes a viewer; a node has 1 GB of its own and 10,000 events of 300 bytes.
    assert found.memory_bytes == pytest.approx(2e9 + 3 * (1e9 + 3e6))
    # 300 bytes, 4 of the frame, 90 of the packet.
    assert found.node_bytes_per_s == pytest.approx(2_000_000 * 394 / 3)
    # A node's gateway and replica have 9 each; an owner 8, a counter 2, the rest 4.
    assert found.postgres_connections == 3 * 18 + 8 + 2 + 4
    assert found.postgres_cores == pytest.approx(0.00005)
    assert (found.owners, found.counters) == (1, 1)


def test_a_resource_is_full_where_nothing_of_it_is_left() -> None:
    found = plan(ONE, HARDWARE, CONSTANTS)
    delivering = use_of("processors, delivering", found)
    # 11 of 24 cores; without the idle viewers' one core, 23 are left for deliveries of 5 µs.
    assert delivering.used == pytest.approx(11 / 23.9988)
    assert delivering.full_at == pytest.approx(22.9988 / 5e-6)
    assert use_of("connections", found).full_at == 3_000_000
    core = use_of("owner's core", found)
    assert (core.load, core.used, core.full_at) == (2, pytest.approx(0.0007), pytest.approx(1e6 / 350))
    assert find_limits(found)[0].resource == "processors, arrival"
    assert find_limits(found)[1].resource == "connections"


def test_a_deadline_shorter_than_the_pause_between_events_counts() -> None:
    slow, short = Scene(1_000_000, events_per_s=0.1, tls=False), 0.25
    calm = use_of("processors, delivering", plan(slow, HARDWARE, CONSTANTS))
    hurried = use_of(
        "processors, delivering",
        plan(Scene(1_000_000, events_per_s=0.1, tls=False, deadline_s=short), HARDWARE, CONSTANTS),
    )
    assert (calm.load, hurried.load) == (1_000_000, 4_000_000)


def test_each_gateway_that_follows_is_a_load_for_the_owner() -> None:
    found = plan(Scene(1_000_000, events_per_s=100, tls=False), Hardware(busy=0.7), CONSTANTS)
    bounds = {bound.resource: bound for bound in found.bounds}
    # 7,000 µs are left for each event, of which the owner takes 50 and each relay 100, which has as many.
    assert bounds["core of a program's owner"].gateways == pytest.approx(69.5**2)
    # A relay takes 300 for itself, 200 for its own viewers, and 100 for each gateway that follows it.
    assert bounds["core of a relay"].gateways == pytest.approx(65**2)
    # 1.25 GB/s, of which 70 % may be used, by 100 events/s of 300 and 182 bytes.
    assert bounds["link of a program's owner"].gateways == pytest.approx((0.7 * 1.25e9 / 48_200) ** 2)
    assert bounds["PostgreSQL's connections"].gateways == pytest.approx((500 - 14) / 18)
    each = 1_000_000 / found.nodes
    assert bounds["core of a program's owner"].viewers == pytest.approx(69.5**2 * each)


def test_an_owner_that_can_feed_few_has_no_more_with_relays() -> None:
    """Of 1,000 events/s 700 µs are left for each: 6.5 gateways, and less than 64 need no relay."""
    found = plan(Scene(1_000, events_per_s=1_000, tls=False), Hardware(busy=0.7), CONSTANTS)
    bounds = {bound.resource: bound for bound in found.bounds}
    assert bounds["core of a program's owner"].gateways == pytest.approx(6.5)
    assert bounds["core of a relay"].gateways == 63


@pytest.mark.parametrize(("gateways", "fed"), [(63, 63), (64, 8), (65, 9), (10_000, 100)])
def test_from_a_number_on_an_owner_feeds_relays(gateways: int, fed: int) -> None:
    assert count_fed(gateways, CONSTANTS) == fed


def test_relays_are_a_load_where_there_are_any() -> None:
    one = Scene(400_000_000, events_per_s=2, tls=False, alive=False)
    found = plan(one, Hardware(busy=0.7, postgres_connections=10_000), CONSTANTS)
    fed = count_fed(found.nodes, CONSTANTS)
    assert found.nodes > 64
    assert use_of("owner's core", found).used == pytest.approx(2 * (50 + 100 * fed) / 1e6)
    assert use_of("relay's core", found).used == pytest.approx(2 * (300 + 200 + 100 * fed) / 1e6)
    assert use_of("owner's link", found).load == 2 * fed


def test_programs_share_owners_and_one_program_has_one() -> None:
    many = plan(Scene(100_000, programs=1_000, events_per_s=2, tls=False), HARDWARE, CONSTANTS)
    # 2,000 events/s of 50 µs and 100 for each gateway, by cores of which half may be used.
    assert many.owners == -(-2_000 * (50 + 100 * many.nodes) // 500_000)
    one = plan(Scene(1_000, events_per_s=2_000, tls=False, alive=False), HARDWARE, CONSTANTS)
    assert one.owners == 1
    assert use_of("owner's core", one).used == pytest.approx(2_000 * (50 + 100 * one.nodes) / 1e6)


def test_votes_are_counted_at_counters_and_taken_by_gateways() -> None:
    voting = Scene(3_000_000, events_per_s=1, votes=3_000_000, vote_s=10, tls=False)
    quiet = plan(Scene(3_000_000, events_per_s=1, tls=False), HARDWARE, CONSTANTS)
    found = plan(voting, HARDWARE, CONSTANTS)
    votes = use_of("processors, votes", found)
    # 300,000 votes/s of 1.8 µs, beside 3,000,000 deliveries/s of 5 µs and as many viewers of 1 µs.
    assert votes.used == pytest.approx((0.54 + 18) / (found.nodes * (8 - 0.0002)))
    assert use_of("counter's core", found).used == pytest.approx(300_000 * 0.41e-6)
    assert found.memory_bytes - quiet.memory_bytes == pytest.approx(3_000_000 * 15.9)
    assert found.postgres_cores == pytest.approx((25 + 300_000 * 0.27) / 1e6)


@pytest.mark.parametrize(("viewers_here", "cpu_us"), [(999, 10), (1_000, 5)])
def test_small_programs_cost_more_a_delivery(viewers_here: int, cpu_us: float) -> None:
    assert delivery_cpu_us(ONE, CONSTANTS, viewers_here) == cpu_us
    assert delivery_cpu_us(Scene(1_000), CONSTANTS, viewers_here) == cpu_us + 2


@pytest.mark.parametrize(
    ("events_per_s", "alive", "cpu_us"), [(0, True, 9), (0.25, True, 7), (3, True, 1), (0, False, 1)]
)
def test_a_second_without_event_costs_a_sign_of_life(events_per_s: float, alive: bool, cpu_us: float) -> None:
    assert idle_cpu_us(Scene(1, events_per_s=events_per_s, alive=alive), CONSTANTS) == cpu_us


@pytest.mark.parametrize(
    ("payload_bytes", "tls", "on_the_wire"), [(300, False, 394), (300, True, 416), (1_445, False, 1_629)]
)
def test_a_message_has_heads_and_as_many_packets_as_it_needs(
    payload_bytes: int, tls: bool, on_the_wire: int
) -> None:
    assert wire_bytes(Scene(1, tls=tls), CONSTANTS, payload_bytes) == on_the_wire


def test_a_node_that_cannot_follow_every_event_is_refused() -> None:
    busy = Scene(1_000_000, programs=100_000, events_per_s=1)
    with pytest.raises(OptionError, match="--cores"):
        plan(busy, HARDWARE, CONSTANTS)


def test_the_three_scenes_have_a_plan_that_holds() -> None:
    for scene in SCENES.values():
        found = plan(scene, Hardware(), Constants.read())
        assert [use.resource for use in found.uses if use.used > 1] == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--viewers 0", "--viewers"),
        ("--viewers ten", "--viewers"),
        ("--votes 5", "--viewers"),
        ("--viewers 5 --programs 10", "--programs"),
        ("--viewers 5 --programs -1", "--programs"),
        ("--viewers 5 --events-per-s nan", "--events-per-s"),
        ("--viewers 5 --events-per-s -1", "--events-per-s"),
        ("--viewers 5 --message-bytes 65536", "--message-bytes"),
        ("--viewers 5 --deadline-s 0", "--deadline-s"),
        ("--viewers 5 --join-s inf", "--join-s"),
        ("--viewers 5 --votes -1", "--votes"),
        ("--viewers 5 --vote-s 0", "--vote-s"),
        ("--cores 0", "--cores"),
        ("--memory-gb 1", "--memory-gb"),
        ("--gbit-per-s 0", "--gbit-per-s"),
        ("--postgres-connections 0", "--postgres-connections"),
        ("--busy 1.1", "--busy"),
        ("--constants nowhere.json", "nowhere.json"),
    ],
)
def test_a_value_that_cannot_be_names_its_option(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words.split())
    assert ended.value.code == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


def test_options_describe_one_scene(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--viewers", "2000000", "--no-tls", "--no-alive", "--show-constants"]) == 0
    shown = capsys.readouterr().out
    assert "2,000,000, 1" in shown
    assert "this scene" in shown
    assert "feed_cpu_us" in shown
    assert "10 million" not in shown


def test_every_constant_says_what_it_is_and_where_it_comes_from() -> None:
    for constant in Constants.read():
        assert constant.unit, constant.name
        for part in re.findall(r"python -m bench ([a-z-]+)", constant.source):
            assert part in PARTS, constant.name
        for path in re.findall(r"(?:bench|docs|python|deploy)/[\w/]+\.\w+", constant.source):
            assert (ROOT / path).exists(), constant.name
        assert re.search(r"python -m bench|RFC|IEEE|/\w+\.\w+|chosen|bytes of Ethernet|poll", constant.source)


def test_constants_are_those_of_the_product() -> None:
    standing, settings = Constants.read(), Settings()
    assert standing["gateway_connections"] == settings.ws_connections
    assert standing["history_bytes"] == settings.history_bytes
    assert standing["history_events"] == settings.history_events
    assert standing["relay_from"] == settings.relay_from
    assert standing["pool_connections"] == settings.database_pool
    epoch, params = "0" * 20, b"x" * 257
    entry = Entry(EntryKind.PUSH, epoch, 1_000, "event", params)
    reply = PollReply(1_000, [EntryBatch(1, epoch, 1_000, [entry])])
    packed = len(OWNER_CALLS.pack_result(1_000, reply)) - len(params)
    assert standing["feed_overhead_bytes"] == packed + 4 + 16 + standing["packet_bytes"]
    assert standing["vote_bytes"] == len(build_votes("c" * 36, "v" * 34, 1, is_native=True))


def test_constants_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "capacity.json"
    Constants.read().measured({"join_cpu_us": 47.5}, "this test").write(path)
    read = Constants.read(path)
    assert read["join_cpu_us"] == 47.5
    assert next(one.source for one in read if one.name == "join_cpu_us") == "this test"
    assert read["delivery_cpu_us"] == Constants.read()["delivery_cpu_us"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "lacks alive_cpu_us"),
        ("{", "capacity.json"),
        ('[{"name": "x"}]', "capacity.json"),
        (STANDING.read_text().replace('"value": 33,', '"value": -1,'), "join_cpu_us is -1"),
        (STANDING.read_text().replace('"value": 33,', '"value": "33",'), "join_cpu_us is '33'"),
    ],
)
def test_a_file_that_is_no_list_of_constants_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "capacity.json"
    path.write_text(text)
    with pytest.raises(ConstantsError, match=says):
        Constants.read(path)


def test_predictions_of_recorded_runs_are_within_a_fifth() -> None:
    recorded = compare_recorded(Constants.read())
    assert len(recorded) == 5
    assert [one.what for one in recorded if not one.holds] == []


@pytest.mark.parametrize(("predicted", "holds"), [(119, True), (121, False), (81, True), (79, False)])
def test_a_prediction_holds_within_a_fifth(predicted: float, holds: bool) -> None:
    one = Comparison("it", predicted, 100, "s")
    assert one.deviation == pytest.approx(predicted / 100 - 1)
    assert one.holds is holds


def test_what_centrifugo_publishes_stands_beside_the_same_load() -> None:
    cores, memory, *_, handed = compare(CONSTANTS)
    # 466,667 deliveries of 10 µs, a million viewers of 1 µs, 3,333 joins of 10 µs.
    assert (cores.theirs, cores.ours) == (40, pytest.approx(4.66667 + 1 + 0.03333))
    assert (memory.theirs, memory.ours) == (27, 2)
    assert (handed.theirs, handed.ours) == (650_000, 10_000)


@pytest.mark.postgres
def test_feeding_is_measured_with_an_owner_and_those_who_follow() -> None:
    found = measure_feeding(Load(followers=2), events=20)
    assert found.owner_us > 0
    assert found.follow_us > 0
    assert found.relay_us == 0
    assert found.last_ms > 0


@pytest.mark.postgres
def test_feeding_is_measured_with_relays_between() -> None:
    found = measure_feeding(Load(followers=4, relays=2), events=20)
    assert found.owner_us > 0
    assert found.relay_us > 0
    assert found.last_ms > 0
