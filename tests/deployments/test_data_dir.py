import hashlib
import os
from pathlib import Path

import pytest

from broker.deployments.data_dir import claim, find_scratch
from broker.setup_error import SetupError


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
    held = claim(tmp_path / ("long" * 40))
    assert len(str(held.scratch)) < 33
    assert find_scratch(held.path) is None
    held.make_scratch()
    assert find_scratch(held.path) == held.scratch
    held.remove_scratch()
    assert not held.scratch.exists()
    assert find_scratch(held.path) is None
    held.release()


def test_everything_is_for_us_alone_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "log").mkdir(mode=0o755)
    held = claim(tmp_path / "data")
    held.make_scratch()
    for directory in (held.path, held.log, held.scratch):
        assert directory.stat().st_mode & 0o777 == 0o700, directory
    held.remove_scratch()
    held.release()


def test_scratch_directory_is_empty_again_at_the_next_start(tmp_path: Path) -> None:
    held = claim(tmp_path)
    held.make_scratch()
    (held.scratch / "ray" / "sockets").mkdir(parents=True)
    (held.scratch / "file").touch()
    before = held.scratch.stat().st_ino
    held.make_scratch()
    assert list(held.scratch.iterdir()) == []
    assert held.scratch.stat().st_ino == before
    held.remove_scratch()
    held.release()


def test_scratch_directory_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    killed = claim(tmp_path)
    killed.make_scratch()
    (killed.scratch / "ha").mkdir()
    killed.release()
    held = claim(tmp_path)
    held.make_scratch()
    assert held.scratch != killed.scratch
    assert not killed.scratch.exists()
    held.remove_scratch()
    held.release()


def test_open_scratch_directory_of_an_earlier_version_is_removed_and_not_used(tmp_path: Path) -> None:
    digest = hashlib.sha256(os.fsencode(tmp_path)).hexdigest()[:10]
    former = Path(f"/tmp/broker-{os.geteuid()}-{digest}")
    (former / "ha").mkdir(parents=True)
    former.chmod(0o777)
    (former / "ha" / "start").write_text("#!/bin/sh\n")
    (former / "link").symlink_to(tmp_path)
    held = claim(tmp_path)
    held.make_scratch()
    assert not former.exists()
    assert (tmp_path / "lock").exists()
    assert held.scratch != former
    held.remove_scratch()
    held.release()


def test_link_to_the_scratch_directory_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "data" / "scratch").symlink_to(tmp_path / "precious")
    held = claim(tmp_path / "data")
    held.make_scratch()
    held.remove_scratch()
    held.release()
    assert (tmp_path / "precious").exists()


def test_directory_that_others_use_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir(mode=0o755)
    (tmp_path / "srv" / "website").mkdir()
    with pytest.raises(SetupError, match="contains other files"):
        claim(tmp_path / "srv")
    assert (tmp_path / "srv").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "srv").iterdir()] == ["website"]


def test_directory_that_an_earlier_version_made_for_the_database_alone_is_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "postgres").mkdir()
    claim(tmp_path / "data").release()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
