"""A program in the place of the conductor, which starts nothing and says what it hears.

The first one ends at once, as one whose Ray does not start. The next one tells of three parts: `began`, with
whether something was to be heard already; `dsn`; and `lease`, with its end. It is ready when it has heard a
DSN.
"""

import select
import sys
from pathlib import Path

import orjson


def tell(message: dict[str, object]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    first = Path(sys.argv[2]) / "first"
    if not first.exists():
        first.touch()
        sys.exit(1)
    is_told = bool(select.select([sys.stdin], [], [], 0)[0])
    tell({"part": "began", "detail": "told" if is_told else "not told"})
    for line in sys.stdin.buffer:
        heard = orjson.loads(line)
        if "lease_until_s" in heard:
            tell({"part": "lease", "detail": str(heard["lease_until_s"])})
        if "dsn" in heard:
            tell({"part": "dsn", "detail": f"{heard['dsn']} in term {heard['term']}"})
            tell({"ready": True})
        if heard.get("do") == "stop":
            return


main()
