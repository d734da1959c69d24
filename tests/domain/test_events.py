"""`broker.domain.events`."""

import pytest
from pydantic import ValidationError

from broker.domain.events import NewEvent


@pytest.mark.parametrize("name", ["Score#update", "a#b", "Lower-Third.2_x#show.Now-1", "A#" + "b" * 198])
def test_an_event_name_may_be(name: str) -> None:
    assert NewEvent.model_validate({"event": name}).event == name


@pytest.mark.parametrize(
    "name",
    ["", "Score", "#update", "Score#", "1a#b", "a#1", "a#b#c", "a b#c", "é#a", "a#b\n", "A#" + "b" * 199],
)
def test_an_event_name_may_not_be(name: str) -> None:
    with pytest.raises(ValidationError, match="Component#action"):
        NewEvent.model_validate({"event": name})


@pytest.mark.parametrize(
    "field", [{"timestamp": "1"}, {"timestamp": 1.5}, {"timestamp": True}, {"metadata": []}, {"more": 1}]
)
def test_a_field_of_the_wrong_kind_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NewEvent.model_validate({"event": "a#b"} | field)
