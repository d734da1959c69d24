"""No test of a command reads or writes the log-ins of whoever runs the tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def config_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command line keeps its log-ins."""
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    for name in ("BROKER_URL", "BROKER_TOKEN", "BROKER_USERNAME", "BROKER_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    return home / "broker"
