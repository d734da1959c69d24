"""Runs the samples of a page: each once, and those that follow for ever until they have printed twice."""

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from broker.client import AsyncClient

_RUNS = "asyncio.run(main())"
_TELLS_S = 60.0
_ENDLESS = ("subscribe(", ".follow(", "timeline(", "in socket")


def samples_of(page: Path, replaced: Mapping[str, str]) -> list[str]:
    """The Python of a page, with the addresses and names of a test in place of the page's."""
    text = page.read_text()
    for old, new in replaced.items():
        text = text.replace(old, new)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def run_sample(
    text: str, client: AsyncClient, made: Callable[[str, Any], None] = lambda name, result: None
) -> list[str]:
    """Run a sample and then its functions, in their order; returns what they printed.

    A sample that runs its `main` does so here, on the loop of the test. A function is given the client, and
    what else it names: the poll that a function before it made, no
    cursor, or the class of the same name.

    Args:
        made: told what each function has returned.
    """
    told: asyncio.Queue[str] = asyncio.Queue()
    lines: list[str] = []

    def show(*values: object) -> None:
        lines.append(" ".join(map(str, values)))
        told.put_nowait(lines[-1])

    names: dict[str, Any] = {"print": show}
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if ast.unparse(node) != _RUNS]
    exec(compile(tree, "a sample", "exec"), names)  # the sample itself
    known = {"client": client, "since": None, "poll": None}
    for node in tree.body:
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        arguments = [
            known[each.arg] if each.arg in known else names[each.arg.title()]() for each in node.args.args
        ]
        source = ast.unparse(node)
        work = names[node.name](*arguments)
        result = await _run(work, told, is_endless=any(word in source for word in _ENDLESS))
        known["poll"] = known["poll"] or result
        made(node.name, result)
    return lines


async def _run(work: Awaitable[Any], told: "asyncio.Queue[str]", *, is_endless: bool) -> Any:
    task = asyncio.ensure_future(work)
    if not is_endless:
        return await task
    while not told.empty():
        told.get_nowait()
    try:
        for _ in range(2):
            telling = asyncio.ensure_future(told.get())
            done, _ = await asyncio.wait(
                {task, telling}, timeout=_TELLS_S, return_when=asyncio.FIRST_COMPLETED
            )
            assert done, f"a sample that follows printed nothing for {_TELLS_S:g} s"
            if task.done():
                telling.cancel()
                raise AssertionError(f"a sample that follows has ended: {await task}")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return None
