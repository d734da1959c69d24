"""The map of the project is as the project is."""

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from docs.draw import PICTURE, SOURCE, draw

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_is_current() -> None:
    assert draw(SOURCE.read_text()) == PICTURE.read_text(), "run `make picture`"


def test_every_room_is_on_the_map() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {room.partition(".")[0] for layer in contracts[0]["layers"] for room in layer.split(" | ")}
    table = PAGE.partition("## Rooms")[2].partition("Native code is")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert {room for row in rows for room in re.findall(r"`(\w+)/?`", row)} == layers


def test_every_file_on_the_map_is_there() -> None:
    named = set(re.findall(r"`([\w<>./]+/(?:[\w<>]+\.(?:py|rs|md))?)`", PAGE))
    assert len(named) > 60
    lacking = [
        name
        for name in sorted(named)
        if "<" not in name
        and not any((base / name).exists() for base in (ROOT, ROOT / "python" / "broker", ROOT / "native"))
    ]
    assert lacking == []


def test_no_module_imports_in_a_circle() -> None:
    graph = grimp.build_graph("broker", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 1_000
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("crate", ["core", "server", "gateway", "py"])
def test_no_file_of_a_native_crate_imports_in_a_circle(crate: str) -> None:
    root = ROOT / "native" / crate / "src"
    modules: dict[tuple[str, ...], Path] = {}
    for path in root.rglob("*.rs"):
        parts = path.relative_to(root).with_suffix("").parts
        modules[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = path
    # Files of a folder extend what its `mod.rs` defines, as one module in several files: not counted.
    imports = {
        module: _imported(module, path.read_text(), set(modules)) - {module, module[:-1]}
        for module, path in modules.items()
        if module and module[0] != "fuzzing" and not module[-1].endswith("_test")
    }
    assert sum(map(len, imports.values())) > len(imports) / 3, "the imports were not found"
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def _imported(module: tuple[str, ...], text: str, modules: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The files that a file of Rust names in its `use`, but for those of its tests."""
    found = set()
    for path in re.findall(
        r"^(?:pub(?:\(\w+\))? )?use ([\w:]+)", text.partition("#[cfg(test)]\nmod ")[0], re.MULTILINE
    ):
        names = [name for name in path.split("::") if name]
        place = list(module)
        if names[0] == "crate":
            place, names = [], names[1:]
        elif names[0] == "super":
            while names and names[0] == "super":
                place, names = place[:-1], names[1:]
        elif (*module, names[0]) not in modules:
            continue  # another crate's
        while names and (*place, names[0]) in modules:
            place.append(names.pop(0))
        if place:
            found.add(tuple(place))
    return found
