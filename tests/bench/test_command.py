import json

import pytest

from bench.servers.command import ENVELOPE, Message, Publish, build_params


@pytest.mark.parametrize("size_bytes", [200, 300, 1000])
def test_a_message_has_the_size_asked_for(size_bytes: int) -> None:
    message = ENVELOPE % build_params(Message(41, size_bytes, 5))
    assert len(message) == size_bytes
    assert json.loads(message)["params"]["seq"] == 41


def test_a_message_says_when_it_was_sent() -> None:
    assert json.loads(build_params(Message(1, 300, 12_345)))["sent"] == 12_345


def test_publish_is_read() -> None:
    assert Publish.parse("publish 3 300 2500\n") == Publish(3, 300, 0.0025)


@pytest.mark.parametrize("line", ["publish 1 2", "unpublish 1 2 3", "publish a 2 3", ""])
def test_other_commands_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Publish.parse(line)
