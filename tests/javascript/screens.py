"""Pictures of every overlay, coming in, on air and going out, in .build/screens: `make screens`."""

import sys
import tempfile
from pathlib import Path

from tests.deployments.instance import Instance
from tests.javascript.test_overlay import SCREENS, run_in_browser


def main() -> None:
    """Start an instance, and have the browser look at it."""
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(Path(folder) / "data")
        try:
            instance.start()
            run_in_browser(instance, "screens")
            instance.stop()
        finally:
            instance.end()
    sys.stdout.write(f"see {SCREENS}\n")


if __name__ == "__main__":
    main()
