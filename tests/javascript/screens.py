"""Pictures of every overlay and of every screen of the dashboard, in .build/screens: `make screens`."""

import sys
import tempfile
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from broker.demo.analytics import settings_for
from broker.demo.matomo import open_stand_in
from tests.deployments.instance import Instance
from tests.javascript import test_dashboard, test_overlay


def main() -> None:
    """Start an instance, and have the browser look at it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_stand_in()) as matomo,
    ):
        instance = Instance(Path(folder) / "data", environment=settings_for(matomo))
        try:
            instance.start()
            test_overlay.run_in_browser(instance, "screens")
            test_dashboard.run_in_browser(instance, "screens")
            instance.stop()
        finally:
            instance.end()
    sys.stdout.write(f"see {test_overlay.SCREENS}\n")


if __name__ == "__main__":
    main()
