"""The arithmetic: a scene, its hardware and the constants give the number of nodes, and what is full first.

Nodes are alike: each runs one gateway, one API replica with its ingress, and its share of owners and
counters. Viewers are spread evenly, so every gateway follows every program. What grows with viewers is
divided among the nodes::

    deliveries/s = viewers × max(events/s, 1 / deadline)
    cores        = deliveries/s × CPU of a delivery + viewers × CPU of an idle one
                   or, while they come, viewers / join time × CPU of a join + what is delivered meanwhile
                   or, while they vote, votes / vote time × CPU of a vote + what is delivered meanwhile
    bytes/s out  = deliveries/s × (message + heads)
    memory       = viewers × bytes of one
    connections  = viewers

What each node takes whatever it serves is subtracted from what a node has: the Python of a gateway handles
every event of every program, and keeps the history of each. The nodes needed are those of the resource that
needs most of them.

What does not grow by nodes is the *centre*. The owner of a program sends each event to each gateway itself,
as long as there are few; from a number on it sends it to relays, which are gateways, as many as the square
root, and each of these to about as many others. So an owner's core and link carry events × those that it
feeds, and so do a relay's::

    fed = gateways, or ⌈√gateways⌉ from relay_from on

A program has one owner, which is one event loop: more owners help many programs, never one. PostgreSQL has a
number of connections, of which each process takes its pool.

The model does not know: that CPU a delivery falls when messages are coalesced (an upper bound), that owners
answer one poll with several events when they are busy (an upper bound of what feeding costs), the latency of
networks between nodes, viewers who are slow, and nodes that fail.
"""

import math
from dataclasses import dataclass

from bench.capacity.constants import Constants
from bench.capacity.scene import Hardware, OptionError, Scene

US = 1e-6
_ROUNDING = 1e-9
"""So that a quotient that is a whole number in arithmetic is none more in floating point."""


@dataclass(frozen=True, slots=True)
class Use:
    """How much of one resource a plan uses.

    Attributes:
        load: of what `unit` says, in this scene.
        used: share of what is there, 1 is all of it.
        full_at: the load at which there is nothing left, if nothing else grows.
    """

    resource: str
    load: float
    unit: str
    used: float
    full_at: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The number of gateways beyond which adding nodes helps no more, with their viewers."""

    resource: str
    gateways: float
    viewers: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scene needs.

    Attributes:
        nodes: with a gateway each; one that may fail is not among them.
        decided_by: the resource that needs so many.
        cores: that are busy at the worst moment, on all nodes; PostgreSQL's are in `postgres_cores`.
        memory_bytes: of all nodes.
        node_bytes_per_s: out of one node, to viewers.
        uses: of every resource at this plan, fullest first.
        bounds: of the centre, nearest first.
    """

    nodes: int
    decided_by: str
    owners: int
    counters: int
    cores: float
    memory_bytes: float
    node_bytes_per_s: float
    postgres_connections: int
    postgres_cores: float
    uses: tuple[Use, ...]
    bounds: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What all nodes together must bear of one resource, and what one of them has for it.

    Attributes:
        amount: of cores, bytes or connections, at the load.
        base: the part of it that does not grow with the load.
        is_count: a limit of a number, which may be used up; nothing of it is kept free.
    """

    resource: str
    load: float
    unit: str
    amount: float
    of_a_node: float
    base: float = 0.0
    is_count: bool = False

    def nodes(self, busy: float) -> float:
        """How many it takes, with a fraction. Raises OptionError where a node has nothing for it."""
        if self.of_a_node <= 0:
            raise OptionError(f"--cores, --memory-gb: a node has nothing left for the {self.resource}")
        return self.amount / (self.of_a_node * (1.0 if self.is_count else busy))

    def use(self, nodes: int) -> Use:
        """How much of so many nodes it uses."""
        there, growing = self.of_a_node * nodes, self.amount - self.base
        full_at = self.load * (there - self.base) / growing if growing else math.inf
        return Use(self.resource, self.load, self.unit, self.amount / there, full_at)


@dataclass(frozen=True, slots=True)
class Centre:
    """What does not grow by nodes: owners, counters, and the load that they and PostgreSQL bear.

    Attributes:
        events_per_s: of all programs.
        fed: gateways that follow each owner, and each relay where there are any.
        owner_us: the owner's CPU of one event, with all gateways that follow.
    """

    events_per_s: float
    votes_per_s: float
    fed: int
    owner_us: float
    owners: int
    counters: int


def plan(scene: Scene, hardware: Hardware, constants: Constants) -> Plan:
    """What `scene` needs on such nodes.

    Raises:
        OptionError: no number of nodes bears it; which options to change.
    """
    nodes, demands = spread(scene, hardware, constants)
    centre = plan_centre(scene, hardware, constants, nodes)
    amounts = {one.resource: one.amount for one in demands}
    connections = count_connections(nodes, centre.owners, centre.counters, constants)
    uses = [one.use(nodes) for one in demands]
    uses += _use_centre(scene, hardware, constants, nodes, centre, connections)
    processors = max(amount for name, amount in amounts.items() if name.startswith("processors"))
    event_us = centre.owner_us + constants["replica_event_cpu_us"]
    central = centre.events_per_s * event_us + centre.votes_per_s * constants["vote_counter_cpu_us"]
    if centre.fed < nodes:
        central += centre.events_per_s * centre.fed * relay_us(centre.fed, constants)
    return Plan(
        nodes=nodes,
        decided_by=max(demands, key=lambda one: one.nodes(hardware.busy)).resource,
        owners=centre.owners,
        counters=centre.counters,
        cores=processors + nodes * follow_cores(scene, constants) + central * US,
        memory_bytes=amounts["memory"]
        + nodes * own_bytes(scene, constants)
        + scene.votes * constants["voter_bytes"],
        node_bytes_per_s=amounts["network to viewers"] / nodes,
        postgres_connections=connections,
        postgres_cores=centre.events_per_s * constants["postgres_event_cpu_us"] * US
        + centre.votes_per_s * constants["vote_postgres_cpu_us"] * US,
        uses=tuple(sorted(uses, key=lambda one: -one.used)),
        bounds=_find_bounds(scene, hardware, constants, nodes, centre),
    )


def spread(scene: Scene, hardware: Hardware, constants: Constants) -> tuple[int, list[Demand]]:
    """The nodes that bear what grows with viewers, and what each resource must bear. Raises OptionError."""
    nodes = 0
    while True:
        # Small programs cost more a delivery, and the more nodes there are, the smaller is a program on each.
        viewers_here = scene.viewers / scene.programs / max(1, nodes)
        demands = list_demands(scene, hardware, constants, viewers_here)
        needed = round_up(max(one.nodes(hardware.busy) for one in demands))
        if needed <= nodes:
            return nodes, demands
        nodes = needed


def plan_centre(scene: Scene, hardware: Hardware, constants: Constants, nodes: int) -> Centre:
    """Owners and counters for so many nodes. A program has no more than one owner."""
    events_per_s, votes_per_s = scene.programs * scene.events_per_s, scene.votes / scene.vote_s
    fed = count_fed(nodes, constants)
    owner_us = constants["owner_event_cpu_us"] + fed * constants["feed_cpu_us"]
    owners = round_up(events_per_s * owner_us * US / hardware.busy)
    counters = round_up(votes_per_s * constants["vote_counter_cpu_us"] * US / hardware.busy)
    return Centre(events_per_s, votes_per_s, fed, owner_us, min(owners, scene.programs), counters)


def list_demands(scene: Scene, hardware: Hardware, constants: Constants, viewers_here: float) -> list[Demand]:
    """What is divided among nodes, where each program has `viewers_here` viewers on a gateway."""
    viewers, rate = scene.viewers, scene.events_per_s
    delivery_us = delivery_cpu_us(scene, constants, viewers_here)
    idle = viewers * idle_cpu_us(scene, constants) * US
    going = idle + viewers * rate * delivery_us * US  # cores, beside arrivals and votes
    peak = viewers * max(rate, 1 / scene.deadline_s) if rate else 0.0
    joins, votes = viewers / scene.join_s, scene.votes / scene.vote_s
    arriving = joins * join_cpu_us(scene, constants) * US
    voting = votes * constants["vote_gateway_cpu_us"] * US
    cores = hardware.cores - follow_cores(scene, constants)
    network = hardware.bytes_per_s
    memory = hardware.memory_gb * 1e9 - own_bytes(scene, constants)
    message = wire_bytes(scene, constants, scene.message_bytes)
    vote = wire_bytes(scene, constants, constants["vote_bytes"])
    slots, held = constants["gateway_connections"], viewers * constants["viewer_bytes"]
    return [
        Demand(
            "processors, delivering", peak, "deliveries/s", idle + peak * delivery_us * US, cores, base=idle
        ),
        Demand("processors, arrival", joins, "viewers/s", going + arriving, cores, base=going),
        Demand("processors, votes", votes, "votes/s", going + voting, cores, base=going),
        Demand("network to viewers", peak, "deliveries/s", peak * message, network),
        Demand("network from voters", votes, "votes/s", votes * vote, network),
        Demand("memory", viewers, "viewers", held, memory),
        Demand("connections", viewers, "viewers", viewers, slots, is_count=True),
    ]


def delivery_cpu_us(scene: Scene, constants: Constants, viewers_here: float) -> float:
    """CPU of one delivery, of a program with `viewers_here` viewers on a gateway."""
    is_small = viewers_here < constants["small_program_viewers"]
    plain_us = constants["small_delivery_cpu_us" if is_small else "delivery_cpu_us"]
    return plain_us + (constants["tls_delivery_cpu_us"] if scene.tls else 0.0)


def join_cpu_us(scene: Scene, constants: Constants) -> float:
    """CPU of one viewer who asks where to connect, connects and subscribes."""
    tls_us = constants["tls_join_cpu_us"] if scene.tls else 0.0
    return constants["connect_cpu_us"] + constants["join_cpu_us"] + tls_us


def idle_cpu_us(scene: Scene, constants: Constants) -> float:
    """CPU of one viewer a second beside deliveries; a second with an event needs no sign of life."""
    silent = max(0.0, 1.0 - scene.events_per_s) if scene.alive else 0.0
    return constants["idle_cpu_us"] + silent * (constants["alive_cpu_us"] - constants["idle_cpu_us"])


def follow_cores(scene: Scene, constants: Constants) -> float:
    """Cores that the Python of each gateway takes to follow all programs."""
    return scene.programs * scene.events_per_s * constants["follow_cpu_us"] * US


def own_bytes(scene: Scene, constants: Constants) -> float:
    """Memory that a node takes without a viewer: the product, and the history of every program."""
    kept = min(constants["history_bytes"], constants["history_events"] * scene.message_bytes)
    return constants["node_bytes"] + scene.programs * kept


def wire_bytes(scene: Scene, constants: Constants, payload_bytes: float) -> float:
    """One message with all its heads, on the network."""
    record = constants["tls_record_bytes"] if scene.tls else 0.0
    text = payload_bytes + constants["frame_head_bytes"] + record
    return text + math.ceil(text / constants["segment_bytes"]) * constants["packet_bytes"]


def count_connections(nodes: int, owners: int, counters: int, constants: Constants) -> int:
    """Connections to PostgreSQL at most: of the doors of all nodes, and of the centre."""
    centre = owners * constants["pool_connections"] + counters * constants["counter_connections"]
    return int(nodes * door_connections(constants) + centre + constants["other_connections"])


def door_connections(constants: Constants) -> float:
    """Connections to PostgreSQL of one node's gateway and API replica."""
    return 2 * (constants["pool_connections"] + constants["listen_connections"])


def count_fed(gateways: int, constants: Constants) -> int:
    """How many of so many gateways follow each owner: all, or the relays."""
    return gateways if gateways < constants["relay_from"] else round_up(math.sqrt(gateways))


def most_gateways(fed: float, constants: Constants) -> float:
    """How many gateways there can be where an owner can feed so many; without relays it may be fewer."""
    relayed = fed * fed
    return relayed if relayed >= constants["relay_from"] else fed


def relay_us(fed: float, constants: Constants) -> float:
    """CPU of a relay an event, for its followers; its own clients' is that of every gateway."""
    return constants["relay_cpu_us"] + fed * constants["feed_cpu_us"]


def round_up(quotient: float) -> int:
    """The next whole number, at least 1."""
    return max(1, math.ceil(quotient - _ROUNDING))


def _use_centre(
    scene: Scene,
    hardware: Hardware,
    constants: Constants,
    nodes: int,
    centre: Centre,
    connections: int,
) -> list[Use]:
    """How full the centre is."""
    events, votes = centre.events_per_s / centre.owners, centre.votes_per_s / centre.counters
    fed = events * centre.fed
    fed_bytes = scene.message_bytes + constants["feed_overhead_bytes"]
    counted_us = constants["vote_counter_cpu_us"]
    most = hardware.postgres_connections
    relaying = []
    if centre.fed < nodes:
        each_us = relay_us(centre.fed, constants) + constants["follow_cpu_us"]
        used = centre.events_per_s * each_us * US
        relaying.append(Use("relay's core", centre.events_per_s, "events/s", used, 1e6 / each_us))
    return [
        *relaying,
        Use(
            "owner's core", events, "events/s an owner", events * centre.owner_us * US, 1e6 / centre.owner_us
        ),
        Use(
            "owner's link",
            fed,
            "events/s handed to gateways, an owner",
            fed * fed_bytes / hardware.bytes_per_s,
            hardware.bytes_per_s / fed_bytes,
        ),
        Use("counter's core", votes, "votes/s a counter", votes * counted_us * US, 1e6 / counted_us),
        Use("PostgreSQL's connections", connections, "connections", connections / most, most),
    ]


def _find_bounds(
    scene: Scene, hardware: Hardware, constants: Constants, nodes: int, centre: Centre
) -> tuple[Bound, ...]:
    """Gateways that the centre can have, with as many viewers on each as planned."""
    taken = count_connections(0, centre.owners, centre.counters, constants)
    spare = (hardware.postgres_connections - taken) / door_connections(constants)
    found = [("PostgreSQL's connections", spare, "raise max_connections, or lower BROKER_DATABASE_POOL")]
    if scene.events_per_s:
        # Of one program, as more owners relieve an owner of many.
        core_us = hardware.busy / scene.events_per_s / US - constants["owner_event_cpu_us"]
        fed_bytes = scene.message_bytes + constants["feed_overhead_bytes"]
        link = hardware.bytes_per_s * hardware.busy / (scene.events_per_s * fed_bytes)
        core = core_us / constants["feed_cpu_us"]
        further = "a second tier of relays, which is not built"
        found += [
            ("core of a program's owner", most_gateways(core, constants), further),
            ("link of a program's owner", most_gateways(link, constants), f"a faster link; {further}"),
        ]
        spare_us = core_us + constants["owner_event_cpu_us"] - constants["follow_cpu_us"]
        relay = max(0.0, spare_us - relay_us(0, constants)) / constants["feed_cpu_us"]
        found.append(("core of a relay", max(constants["relay_from"] - 1, relay * relay), further))
    each = scene.viewers / nodes
    bounds = [Bound(name, most, most * each, remedy) for name, most, remedy in found]
    return tuple(sorted(bounds, key=lambda one: one.gateways))
