"""What a failing test tells."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
SUSPECT = re.compile(r"\bassert (not )?(all|any)\(")  # most files need not be parsed


def says_nothing(node: ast.AST) -> bool:
    """Whether it fails with `assert False` of a generator, which tells nobody which element was meant."""
    if not isinstance(node, ast.Assert) or node.msg is not None:
        return False
    test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id in {"all", "any"}


def test_an_assertion_about_many_shows_which_of_them_it_fails_for() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        if SUSPECT.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if says_nothing(node)
    ]
    assert found == [], "write `assert [x for x in xs if not holds(x)] == []`, or say in words what should be"
