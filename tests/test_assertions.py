"""What a failing test tells."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def says_nothing(node: ast.Assert) -> bool:
    """Whether its failure is `assert False` of a generator, which tells nobody which element was meant."""
    test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    is_of_many = (
        isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id in {"all", "any"}
    )
    return is_of_many and node.msg is None


def test_an_assertion_about_many_shows_which_of_them_it_fails_for() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and says_nothing(node)
    ]
    assert found == [], (
        "write `assert [x for x in xs if not holds(x)] == []`, or say in words what is expected"
    )
