"""One name, one thing: no two public classes of the server, and none of the SDK, are called the same.

The SDK is a product of its own, whose classes have the names of the interface's nouns, as the server's do.
"""

import ast
from collections import defaultdict
from pathlib import Path

import broker

PACKAGE = Path(broker.__path__[0])


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        product = "SDK" if "client" in path.relative_to(PACKAGE).parts[:1] else "server"
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.ClassDef) and not found.name.startswith("_"):
                places[product, found.name].append(f"{path.relative_to(PACKAGE)}:{found.lineno}")
    assert {name: where for (_, name), where in places.items() if len(where) > 1} == {}
