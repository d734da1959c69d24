from pathlib import Path

import pytest

from broker.deployments.data_dir import claim, make_scratch, scratch_directory
from broker.storage.errors import SetupError


def test_claim_is_exclusive_until_it_is_released(tmp_path: Path) -> None:
    held = claim(tmp_path / "data")
    with pytest.raises(SetupError, match="in use by another"):
        claim(tmp_path / "data")
    held.release()
    claim(tmp_path / "data").release()


def test_mark_belongs_to_the_directory(tmp_path: Path) -> None:
    one, other = claim(tmp_path / "one"), claim(tmp_path / "other")
    assert one.mark != other.mark
    one.release()
    again = claim(tmp_path / "one")
    assert again.mark == one.mark
    again.release()
    other.release()


def test_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be used"):
        claim(tmp_path / "file")


def test_log_that_has_grown_too_large_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.deployments.data_dir._LOG_BYTES", 3)
    held = claim(tmp_path)
    for text in ("four", "new"):
        with open(held.open_log("part"), "w") as log:  # noqa: PTH123 - it is a descriptor
            log.write(text)
    assert (tmp_path / "log" / "part.log").read_text() == "new"
    assert (tmp_path / "log" / "part.log.1").read_text() == "four"
    held.release()


def test_sockets_of_a_long_path_have_a_short_one(tmp_path: Path) -> None:
    scratch = scratch_directory(tmp_path / ("long" * 40))
    assert len(str(scratch)) < 30
    assert scratch != scratch_directory(tmp_path)


def test_scratch_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "scratch").symlink_to(tmp_path / "theirs")
    with pytest.raises(SetupError, match="belongs to somebody else"):
        make_scratch(tmp_path / "scratch")
    make_scratch(tmp_path / "ours")
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o700
