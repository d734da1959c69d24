"""Which gateways relay the owners' feeds, and whom each gateway follows: every gateway computes it by itself.

With n gateways, from a set number on, ⌈√n⌉ of them are relays: so many follow each owner, and about as many
follow each relay, which is the least that the busiest of them can have. All follows from the names alone:

* relays are the gateways with the largest hashes, so one that comes or goes changes one relay at most, or
  the number of them by one;
* a gateway's order of relays is by the hash of both names (rendezvous hashing), so a relay that goes leaves
  its followers to all others alike, and one that comes takes its share from all.

Gateways whose lists differ for a moment choose differently, and no harm is done: a gateway that is asked
relays, whatever it thinks itself, and a relay follows owners only (`broker.owners.relay`), so that there is
one tier always.
"""

from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import isqrt


def choose_relays(gateways: Collection[str], relay_from: int) -> list[str]:
    """The names of the gateways that relay, in an order that is the same everywhere.

    Args:
        gateways: their names, each once.
        relay_from: with fewer gateways nobody relays; 0 is never.
    """
    if not 0 < relay_from <= len(gateways):
        return []
    return sorted(gateways, key=lambda name: _hash(b"relay", name), reverse=True)[: _root(len(gateways))]


def rank_relays(gateway: str, relays: Sequence[str]) -> list[str]:
    """The relays in the order in which a gateway tries them: a relay has itself, and no other."""
    if gateway in relays:
        return [gateway]
    return sorted(relays, key=lambda relay: _hash(relay.encode(), gateway), reverse=True)


def _root(number: int) -> int:
    """The square root, rounded up."""
    return isqrt(number - 1) + 1


def _hash(salt: bytes, name: str) -> bytes:
    return blake2b(salt + b"\0" + name.encode(), digest_size=8).digest()
