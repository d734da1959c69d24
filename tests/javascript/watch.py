"""A browser that looks at pages for a test in Python."""

import json
import os
import subprocess
from types import TracebackType
from typing import Self

from tests.javascript.test_client import BUILT, CHROMIUM, ROOT, unpack_browser

PROGRAM = BUILT / "overlay" / "watch.mjs"


class Watch:
    """`js/overlay/test/watch.ts`, while it is entered."""

    def __enter__(self) -> Self:
        unpack_browser()
        self._node = subprocess.Popen(
            ["node", PROGRAM],
            cwd=ROOT,
            env={**os.environ, **CHROMIUM, "ONAIR_ROOT": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._node.communicate(timeout=30)  # the end of its input
        finally:
            self._node.kill()
            self._node.wait()

    def open(self, url: str) -> None:
        """Look at another page."""
        self._do({"open": url})

    def until(self, selector: str, text: str | None = None) -> None:
        """Return when an element of the page shows `text` and no other, or any. Fails after half a minute."""
        self._do({"says": selector} if text is None else {"says": selector, "text": text})

    def _do(self, wanted: dict[str, str]) -> None:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(f"{json.dumps(wanted)}\n")
        self._node.stdin.flush()
        if self._node.stdout.readline() != "done\n":
            assert self._node.stderr is not None
            raise AssertionError(f"{wanted}: {self._node.stderr.read()}")
