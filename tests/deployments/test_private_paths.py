import os
from pathlib import Path

import pytest

from broker.deployments import private_paths
from broker.deployments.private_paths import require_private, require_private_file
from broker.setup_error import SetupError


@pytest.fixture
def open_directory(tmp_path: Path) -> Path:
    """A directory of ours in one that everybody may write."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "ours").mkdir(mode=0o700)
    return tmp_path / "open" / "ours"


def test_directory_of_ours_below_tmp_is_private(tmp_path: Path) -> None:
    require_private(tmp_path, "the directory")


def test_directory_that_others_can_rename_is_refused(open_directory: Path) -> None:
    with pytest.raises(SetupError, match=f"{open_directory.parent} can be written by others"):
        require_private(open_directory, "the directory")


def test_sticky_bit_keeps_others_from_renaming_it(open_directory: Path) -> None:
    open_directory.parent.chmod(0o1777)
    require_private(open_directory, "the directory")


def test_directory_that_others_can_write_is_refused_sticky_or_not(open_directory: Path) -> None:
    open_directory.parent.chmod(0o1777)
    for mode in (0o1777, 0o702):
        open_directory.chmod(mode)
        with pytest.raises(SetupError, match="ours can be written by others"):
            require_private(open_directory, "the directory")


def test_group_may_write_when_only_we_are_in_it(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory.parent.chmod(0o775)
    monkeypatch.setattr(private_paths, "_is_own_group", lambda *_: False)
    with pytest.raises(SetupError, match="can be written by others"):
        require_private(open_directory, "the directory")
    monkeypatch.setattr(private_paths, "_is_own_group", lambda *_: True)
    require_private(open_directory, "the directory")


def test_directory_of_somebody_else_is_refused(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(open_directory.parent, 65_534, 65_534)
        open_directory.parent.chmod(0o755)
    else:  # only root can give something away, so we become somebody else
        monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    with pytest.raises(SetupError, match=r"is not safe: \S+ belongs to the user "):
        require_private(open_directory, "the directory")


def test_group_of_others_is_not_our_own(tmp_path: Path) -> None:
    assert not private_paths._is_own_group(tmp_path, 65_534)


def test_a_file_of_ours_is_private_whoever_may_read_it(open_directory: Path) -> None:
    open_directory.parent.chmod(0o1777)
    file = open_directory / "settings"
    file.touch(mode=0o644)
    require_private_file(file, "the file")
    file.chmod(0o646)
    with pytest.raises(SetupError, match="settings can be written by others"):
        require_private_file(file, "the file")


def test_a_link_is_as_private_as_its_place_and_what_it_leads_to(open_directory: Path, tmp_path: Path) -> None:
    """Its place lets others rename it; then what it leads to."""
    ours = tmp_path / "settings"
    ours.touch(mode=0o600)
    open_place = open_directory.parent
    (open_place / "first").symlink_to(ours)
    (open_place / "theirs").touch(mode=0o600)
    (tmp_path / "second").symlink_to("first")
    (tmp_path / "first").symlink_to(open_place / "theirs")
    for link in (open_place / "first", tmp_path / "first", tmp_path / "second"):
        with pytest.raises(SetupError, match=f"{open_place} can be written by others"):
            require_private_file(link, "the file")
    (tmp_path / "third").symlink_to(ours)
    require_private_file(tmp_path / "third", "the file")
