"""A Matomo to test on: the stand-in, or a real one that the environment names.

`MATOMO_TEST_URL`, `MATOMO_TEST_TOKEN` (of a superuser), `MATOMO_TEST_READER` and `MATOMO_TEST_READER_TOKEN`
(of a user who sees no site yet) make the contract suite run on that Matomo too; docs/analytics.md says how to
start one. It gets new sites with every run.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from broker.demo.matomo import READER, READER_TOKEN, TOKEN, StandIn, open_stand_in

_REAL = ("MATOMO_TEST_URL", "MATOMO_TEST_TOKEN", "MATOMO_TEST_READER", "MATOMO_TEST_READER_TOKEN")


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a Matomo is, and its two users; `stand_in` is None for a real one."""

    url: str
    token: str
    reader: str
    reader_token: str
    stand_in: StandIn | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The product's settings for it."""
        return {
            "matomo_url": self.url,
            "matomo_token": self.token,
            "matomo_reader": self.reader,
            "matomo_reader_token": self.reader_token,
        }


@pytest.fixture
async def stand_in(anyio_backend: str) -> AsyncIterator[StandIn]:
    async with open_stand_in() as stand_in:
        yield stand_in


def peer_of(stand_in: StandIn) -> Peer:
    return Peer(stand_in.url, TOKEN, READER, READER_TOKEN, stand_in)


def real_peer() -> Peer | None:
    """The real Matomo that the environment names."""
    url, token, reader, reader_token = (os.environ.get(name, "") for name in _REAL)
    return Peer(url.rstrip("/"), token, reader, reader_token) if url else None


@pytest.fixture(params=["stand-in", *(["real"] if real_peer() else [])])
async def peer(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Peer]:
    """Every Matomo that there is to test on."""
    if request.param == "real":
        found = real_peer()
        assert found is not None
        yield found
        return
    async with open_stand_in() as stand_in:
        yield peer_of(stand_in)
