"""Schemathesis, with all of its checks, finds nothing: the door does what the OpenAPI document says."""

from collections.abc import AsyncIterator

import pytest

from tests.rest.fuzzing import Target, fuzz, open_target

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.fixture
async def target(own_migrated_dsn: str) -> AsyncIterator[Target]:
    async with open_target(own_migrated_dsn) as target:
        yield target


@pytest.mark.parametrize(
    ("role", "options"),
    [
        ("admin", ["--max-examples=3"]),
        ("producer", ["--max-examples=3", "--phases=examples,fuzzing,stateful"]),
        (None, ["--max-examples=3", "--phases=examples,fuzzing,stateful"]),
    ],
)
async def test_nothing_is_found(target: Target, role: str | None, options: list[str]) -> None:
    """All but the same requests each time; `make fuzzapi` sends others."""
    found = await fuzz(target, role, "--seed=1", *options)
    if found:
        pytest.fail(found)
