"""A program in the place of the conductor, which starts nothing and says what it hears.

The first one ends at once, as one whose Ray does not start. The next one tells of four parts: `began`, with
whether something was to be heard already; `dsn`; `lease`, with its end; and `roll`, with the log level that
is wanted. It is ready when it has heard a DSN. A roll to the level `error` fails, one to `warning` ends it.
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
        if heard.get("do") == "roll":
            level = heard["settings"]["BROKER_LOG_LEVEL"]
            tell({"part": "roll", "detail": level})
            if level == "warning":
                sys.exit(1)
            tell({"updated": "no gateway starts" if level == "error" else ""})
        if heard.get("do") == "stop":
            return


main()
