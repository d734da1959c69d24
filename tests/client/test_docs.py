"""The examples of the SDK compile, and what they name exists."""

import ast
import re
from pathlib import Path

import pytest

import broker.client
from broker.client import AsyncClient, Socket

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sdk.md").read_text()
OTHERS = [(ROOT / name).read_text() for name in ("README.md", "docs/answers.md")]
CLIENT = AsyncClient("http://demo.localhost:8000")  # opens nothing
EXAMPLES = [text for page in (PAGE, *OTHERS) for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_compiles(text: str) -> None:
    compile(text, "an example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_names_what_exists(text: str) -> None:
    for node in ast.walk(
        compile(text, "an example", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ):
        if isinstance(node, ast.ImportFrom) and node.module == "broker.client":
            assert all(hasattr(broker.client, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "client":
            assert hasattr(CLIENT, node.attr)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "socket":
            assert hasattr(Socket, node.attr)


def test_every_error_of_the_page_exists() -> None:
    section = PAGE.split("## Errors")[1]
    names = re.findall(r"`([A-Z]\w+)`", section)
    assert names
    assert all(hasattr(broker.client, name) for name in names)
