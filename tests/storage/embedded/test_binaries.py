import os
import shutil
from pathlib import Path

import pytest

from broker.setup_error import SetupError
from broker.storage.embedded.binaries import Binaries, find_binaries, reachable, read_binaries
from broker.storage.embedded.os_user import OsUser, choose


def make_programs(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (directory / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.parametrize(("version", "major"), [("14.0", 14), ("15.3 (Debian 15.3-0)", 15), ("19beta1", 19)])
def test_version_is_read(tmp_path: Path, version: str, major: int) -> None:
    found = read_binaries(make_programs(tmp_path / "bin", version))
    assert found is not None
    assert found.major == major


def test_directory_without_programs_is_none(tmp_path: Path) -> None:
    assert read_binaries(tmp_path) is None


def test_programs_that_do_not_run_are_none(tmp_path: Path) -> None:
    directory = make_programs(tmp_path / "bin", "15.1")
    (directory / "postgres").write_text("#!/nowhere\n")
    assert read_binaries(directory) is None


def test_oldest_version_is_taken_and_older_is_refused(tmp_path: Path) -> None:
    assert find_binaries(str(make_programs(tmp_path / "14" / "bin", "14.0")), None).major == 14
    with pytest.raises(SetupError, match="found 13"):
        find_binaries(str(make_programs(tmp_path / "13" / "bin", "13.9")), None)


def test_data_directory_decides_the_version(tmp_path: Path) -> None:
    directory = str(make_programs(tmp_path / "bin", "15.1"))
    assert find_binaries(directory, 15).major == 15
    with pytest.raises(SetupError, match=r"made by PostgreSQL 16 .*found 15"):
        find_binaries(directory, 16)


def test_some_programs_are_found_here() -> None:
    assert find_binaries("", None).major >= 14


def test_user_is_stopped_by_a_closed_directory(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    stranger = OsUser(54321, 54321, is_other=True)
    for directory in (inner, *inner.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/"):
            directory.chmod(0o755) if directory.is_relative_to(tmp_path) else None
    (tmp_path / "closed").chmod(0o700)
    assert not stranger.can_traverse(inner)
    assert OsUser(os.geteuid(), os.getegid(), is_other=False).can_traverse(inner)


def test_closed_programs_are_copied_once(tmp_path: Path) -> None:
    make_programs(tmp_path / "package" / "pginstall" / "bin", "15.1")
    (tmp_path / "package" / "pginstall" / "bin" / "psql").touch()
    (tmp_path / "package" / "pginstall" / "share").mkdir()
    (tmp_path / "package.libs").mkdir()
    (tmp_path / "package.libs" / "libpq.so").touch()
    tmp_path.chmod(0o700)
    binaries = Binaries(tmp_path / "package" / "pginstall" / "bin", 15)
    copy = reachable(binaries, OsUser(54321, 54321, is_other=True))
    top = copy.directory.parents[2]
    try:
        assert OsUser(54321, 54321, is_other=True).can_traverse(copy.directory)
        assert read_binaries(copy.directory) == copy
        assert not (copy.directory / "psql").exists()
        assert (copy.directory.parent / "share").is_dir()
        assert (top / "package.libs" / "libpq.so").exists()
        assert reachable(binaries, OsUser(54321, 54321, is_other=True)) == copy
    finally:
        shutil.rmtree(top)


def test_server_never_runs_as_root(tmp_path: Path) -> None:
    assert choose(tmp_path / "none").uid != 0
