from pathlib import Path

import pytest

from broker.setup_error import SetupError
from broker.storage.embedded.locks import SharedLock, exclusive


def test_exclusive_lock_is_waited_for_in_bounds(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", 1),
        pytest.raises(SetupError, match="another process"),
        exclusive(tmp_path / "lock", 0.05),
    ):
        pass
    with exclusive(tmp_path / "lock", 0.05):
        pass


def test_only_the_last_to_release_is_last(tmp_path: Path) -> None:
    one, two = SharedLock(tmp_path / "users"), SharedLock(tmp_path / "users")
    assert one.release() is False
    assert two.release() is True
    assert two.release() is False
