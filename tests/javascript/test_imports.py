"""The imports of our JavaScript run one way: no file is imported by what it imports itself."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

JAVASCRIPT = Path(__file__).resolve().parents[2] / "js"
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*"(\.{1,2}/[^"]+)\"""")


def read_graph(folder: Path) -> dict[Path, set[Path]]:
    """What each source below the folder imports of the others, types too."""
    graph: dict[Path, set[Path]] = {}
    for file in (each for each in folder.rglob("*.ts*") if "node_modules" not in each.parts):
        places = (file.parent / found for found in IMPORT.findall(file.read_text()))
        graph[file] = {
            source.resolve()
            for place in places
            for source in (place.with_suffix(".ts"), place.with_suffix(".tsx"))
            if source.exists()
        }
    return graph


@pytest.mark.parametrize("package", ["client", "overlay", "dashboard"])
def test_no_imports_form_a_circle(package: str) -> None:
    graph = read_graph(JAVASCRIPT / package / "src")
    assert sum(map(len, graph.values())) > len(graph) / 2, "the imports were not found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(file.name for file in error.args[1]))
