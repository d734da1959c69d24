"""The examples of the SDK compile, and what they name exists."""

import ast
import operator
import re
from pathlib import Path

import pytest

import broker.client
from broker.client import AsyncClient, Client, Socket
from broker.resources.catalogue import build_registry

ROOT = Path(__file__).parents[2]
_PAGES = (
    "README.md", "docs/answers.md", "docs/first-hour.md", "docs/images.md", "docs/analytics.md",
    "python/broker/client/README.md",
)  # fmt: skip
PAGE = (ROOT / "docs" / "sdk.md").read_text()
OTHERS = [(ROOT / name).read_text() for name in _PAGES]
CLIENT = AsyncClient("http://demo.localhost:8000")  # opens nothing
EXAMPLES = [text for page in (PAGE, *OTHERS) for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_compiles(text: str) -> None:
    compile(text, "an example", "exec")  # as it stands: no `await` outside a function


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_names_what_exists(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "broker.client":
            assert [alias for alias in node.names if not hasattr(broker.client, alias.name)] == []
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("client."):
            assert operator.attrgetter(ast.unparse(node).removeprefix("client."))(CLIENT)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "socket":
            assert hasattr(Socket, node.attr)


def test_every_error_of_the_page_exists() -> None:
    section = PAGE.split("## Errors")[1]
    names = re.findall(r"`([A-Z]\w+)`", section)
    assert names
    assert [name for name in names if not hasattr(broker.client, name)] == []


def test_the_page_has_every_method_and_every_operation() -> None:
    """The table is whole in both directions."""
    section = PAGE.split("## Every operation")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `client\.(\w+)\.(\w+)` \| (?:`([\w/]+)`|images) \|$", section, re.MULTILINE)
    documented = {(group, method) for group, method, _ in rows}
    assert documented == methods(CLIENT), "each public method of a resource has a row"
    operations = {operation.name for operation in build_registry().operations} | {
        "subscribe"
    }  # the gateway's own
    named = set(re.findall(r"`([\w/]+)`", section))
    assert operations - named == set(), "each operation is named, with the method that calls it"
    assert {operation for _, _, operation in rows} - {""} <= operations, "no row names what is no operation"


def test_both_clients_have_the_same_methods() -> None:
    with Client("http://demo.localhost:8000") as client:
        assert methods(client) == methods(CLIENT)


def test_only_publishing_and_subscribing_have_a_short_form() -> None:
    """What else a client does by itself is about connections."""
    with Client("http://demo.localhost:8000") as client:
        for each, own in ((client, {"close"}), (CLIENT, {"close", "socket", "open_socket"})):
            called = {
                name for name in dir(each) if not name.startswith("_") and callable(getattr(each, name))
            }
            assert called == own | {"publish", "subscribe"}


def methods(client: object) -> set[tuple[str, str]]:
    """The public methods of a client's resources."""
    groups = {name: group for name, group in vars(client).items() if not name.startswith("_")}
    return {
        (name, method)
        for name, group in groups.items()
        if not callable(group)
        for method in dir(group)
        if not method.startswith("_")
    }
