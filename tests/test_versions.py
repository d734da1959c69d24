"""Every place that names the product's version names the same one."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from broker import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("js/client", "js/overlay", "js/dashboard")
IMAGES = (
    "deploy/docker/compose.yaml",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "deploy/kuberay").rglob("*.yaml"))),
    "docs/docker.md",
    "docs/kubernetes.md",
)
_IMAGE = re.compile(r"\bbroker(?:-gpu)?:([0-9][\w.-]*)|\bnewTag: *\"?([0-9][\w.-]*)")


def test_projects_have_the_version_of_the_package() -> None:
    cargo, server, client = (
        tomllib.loads((ROOT / name).read_text())
        for name in ("Cargo.toml", "pyproject.toml", "python/pyproject.toml")
    )
    named = [cargo["workspace"]["package"], server["project"], client["project"]]
    named += [json.loads((ROOT / folder / "package.json").read_text()) for folder in PACKAGES]
    assert [each["version"] for each in named] == [__version__] * len(named)


def test_images_are_of_the_version_of_the_package() -> None:
    found = {
        name: [first or second for first, second in _IMAGE.findall((ROOT / name).read_text())]
        for name in IMAGES
    }
    assert {name: tags for name, tags in found.items() if set(tags) - {__version__}} == {}
    assert len([name for name, tags in found.items() if tags]) >= 6


@pytest.mark.parametrize("text", ["image: broker:9.9.9", "newTag: 9.9.9", "image: broker-gpu:9.9.9"])
def test_a_tag_is_found_in_each_form(text: str) -> None:
    assert _IMAGE.search(text)
