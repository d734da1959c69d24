"""Kubernetes' manifests of `deploy/kuberay` as kustomize makes them: `make manifests` writes, tests read.

Kustomize is no package of Python, so what it makes is kept in the repository, with a digest of what it was
made of: a test says when somebody has changed the one and not the other.
"""

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "deploy" / "kuberay"
RENDERED = SOURCES / "rendered"
OVERLAYS = ("laptop", "production", "gpu")
_HEAD = "# Made by `make manifests`; change what it is made of. Digest of that: "


def digest() -> str:
    """Of all sources, by name and content."""
    total = hashlib.sha256()
    for path in sorted(
        path for path in SOURCES.rglob("*") if path.is_file() and RENDERED not in path.parents
    ):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(SOURCES)} {content}\n".encode())
    return total.hexdigest()


def digest_of(overlay: str) -> str:
    """Of what the rendered overlay was made of."""
    first, _, _ = (RENDERED / f"{overlay}.yaml").read_text().partition("\n")
    return first.removeprefix(_HEAD)


def read_overlay(overlay: str) -> list[dict[str, Any]]:
    """All resources of an overlay."""
    return list(yaml.load_all((RENDERED / f"{overlay}.yaml").read_text(), Loader=yaml.CSafeLoader))


def main() -> None:
    """Render every overlay. Arguments: the command that builds a kustomization, without its folder."""
    command = shlex.split(" ".join(sys.argv[1:]))
    RENDERED.mkdir(exist_ok=True)
    for overlay in OVERLAYS:
        made = subprocess.run([*command, SOURCES / overlay], check=True, capture_output=True, text=True)
        (RENDERED / f"{overlay}.yaml").write_text(f"{_HEAD}{digest()}\n{made.stdout}")


if __name__ == "__main__":
    main()
