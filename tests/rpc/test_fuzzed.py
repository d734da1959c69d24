"""Some of what `tests.rpc.fuzzing` does for longer."""

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from tests.rpc.fuzzing import PROPERTIES


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Calls that fail are logged, each with its trace."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_property_holds(check: Callable[[], None]) -> None:
    settings(max_examples=100)(check)()
