"""One name, one thing: no two public types of the server, and none of the SDK, are called the same.

The SDK is a product of its own, whose classes have the names of the interface's nouns, as the server's do.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import broker

PACKAGE = Path(broker.__path__[0])
TYPE = re.compile(r"[A-Z]\w*[a-z]\w*")


def public_types(module: ast.Module) -> Iterator[tuple[str, int]]:
    """The classes of a module, and the names that it gives to other types, with their lines."""
    for found in ast.walk(module):
        if isinstance(found, ast.ClassDef) and not found.name.startswith("_"):
            yield found.name, found.lineno
    for statement in module.body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Name) and TYPE.fullmatch(target.id):
                yield target.id, statement.lineno


def test_no_two_public_types_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        product = "SDK" if "client" in path.relative_to(PACKAGE).parts[:1] else "server"
        for name, line in public_types(ast.parse(path.read_text())):
            places[product, name].append(f"{path.relative_to(PACKAGE)}:{line}")
    assert {name: where for (_, name), where in places.items() if len(where) > 1} == {}
