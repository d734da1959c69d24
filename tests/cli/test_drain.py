"""`broker drain` without a cluster; `tests/deployments/test_joined.py` has it with one."""

import pytest

from broker.cli.main import run


def test_one_machine_alone_has_no_node_to_drain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_RAY_ADDRESS", raising=False)
    assert run(["drain"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "BROKER_RAY_ADDRESS or --ray-address is required" in told
