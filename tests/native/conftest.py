"""Fixtures for the native server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.native.harness import PROGRAM, Gateway


@pytest.fixture
def start() -> Iterator[Callable[..., Gateway]]:
    """Start servers with settings; they are stopped after the test."""
    gateways: list[Gateway] = []

    def begin(**settings: Any) -> Gateway:
        gateways.append(Gateway(**settings))
        return gateways[-1]

    yield begin
    for gateway in gateways:
        gateway.server.stop()


@pytest.fixture
def gateway(start: Callable[..., Gateway]) -> Gateway:
    """A server with the open, public log of one program at seq 0 of epoch `e1`."""
    gateway = start()
    gateway.server.open_log(PROGRAM, "e1", 0, True)
    return gateway
