"""The disruption profile publishes what it says, at its pace, and leaves out who is not there."""

from pathlib import Path

import pytest

from bench import disruption
from bench.disruption import Profile, build_options, is_there, pace
from bench.peers.install import InstallError


def test_messages_are_numbered_from_one() -> None:
    told: list[dict[str, int]] = []
    assert pace(told.append, Profile(10, 0.05, 100.0, 1.0, 1.0)) == 5
    assert [message["n"] for message in told] == [1, 2, 3, 4, 5]
    assert [message["sent"] for message in told] == sorted(message["sent"] for message in told)


def test_a_peer_that_cannot_be_had_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise InstallError(f"{name} is not to be had")

    monkeypatch.setattr(disruption, "ensure_peer", refuse)
    assert is_there("Broker")
    assert not is_there("Centrifugo")
    assert "Centrifugo is not to be had" in capsys.readouterr().out


@pytest.mark.parametrize(("with_sdk", "in_node", "each"), [(500, 400, 10), (50, 40, 1), (12, 2, 1)])
def test_a_fifth_of_those_with_the_sdk_is_in_pages(with_sdk: int, in_node: int, each: int) -> None:
    options = build_options("http://localhost", Profile(10_000, 60.0, 2.0, 15.0, 2.0, with_sdk))
    assert (options["node"], options["each"], options["tabs"]) == (in_node, each, 10)
    assert (options["everyMs"], options["awayMs"]) == (15_000, 2_000)


def test_the_viewers_are_pinned() -> None:
    pins = (Path(disruption.SOURCE) / "go.sum").read_text().splitlines()
    wanted = (Path(disruption.SOURCE) / "go.mod").read_text()
    assert "github.com/coder/websocket" in wanted
    assert [pin for pin in pins if " h1:" not in pin] == []
