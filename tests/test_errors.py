"""`broker.errors`: the tree as a whole, and what travels."""

import pickle
from collections.abc import Iterator

import pytest

from broker import errors
from broker.errors import BrokerError, FieldFault, InvalidRequest, SlowDown


def tree(kind: type[BrokerError] = BrokerError) -> Iterator[type[BrokerError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


KINDS = sorted(set(tree()) - {BrokerError}, key=lambda kind: kind.__name__)


def test_every_error_of_the_module_has_its_own_name() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_drawn_in_the_tree(kind: type[BrokerError]) -> None:
    assert errors.__doc__ is not None
    row = next(line for line in errors.__doc__.splitlines() if f"── {kind.__name__} " in f"{line} ")
    assert kind.name in row


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_to_another_process(kind: type[BrokerError]) -> None:
    sent = kind("text", faults=[FieldFault("a", "b")], retry_after_s=3, log_text="inner")
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is kind
    assert (received.message, received.faults, received.retry_after_s, received.log_text) == (
        "text",
        (FieldFault("a", "b"),),
        3,
        "inner",
    )


def test_the_body_never_carries_the_log_text() -> None:
    assert "inner" not in str(SlowDown("wait", retry_after_s=1, log_text="inner").body())


def test_a_field_fault_names_the_field_in_the_body() -> None:
    assert InvalidRequest.of_field("limit", "must be 1 to 1000").body() == {
        "error": "invalid_request",
        "error_description": "limit: must be 1 to 1000",
        "status": 400,
        "errors": [{"field": "limit", "message": "must be 1 to 1000"}],
    }
