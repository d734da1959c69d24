"""Private names of others are used in one place, and each file there says what it leans on."""

import ast
import re
from pathlib import Path

import pytest

import broker.deployments.ray_internals

PLACE = Path(broker.deployments.ray_internals.__path__[0])
PACKAGE = PLACE.parent.parent
MODULES = sorted(path for path in PLACE.glob("*.py") if path.stem != "__init__")
PRIVATE = re.compile(r"ray\.(?:serve\.)?_\w+|ray\.core\.generated|uvicorn\.(?:protocols|middleware|server)")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_each_says_what_it_leans_on_and_what_that_gains(module: Path) -> None:
    told = ast.get_docstring(ast.parse(module.read_text())) or ""
    heads = re.findall(r"^(Names used|Probe|Fall-back|Gain): \S", told, re.MULTILINE)
    assert heads == ["Names used", "Probe", "Fall-back", "Gain"]


def test_nobody_else_uses_private_names() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert users - set(MODULES) == set()
