"""Screenshots of every overlay and of every screen of the dashboard, in .build/screens: `make screens`.

`make pictures` takes those of the documentation anew, into docs/pictures.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from PIL import Image

from broker.demo.analytics import settings_for
from broker.demo.matomo import open_stand_in
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance
from tests.javascript import test_dashboard, test_overlay
from tests.javascript.test_overlay import SCREENS

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
OVERLAYS = {"lower-third": "overlay-lower-third", "poll-day": "overlay-poll"}
"""Which overlays the documentation shows; as photographs, for a video frame stands behind them."""
OVERLAY_PX = (1280, 720)
QUALITY = 85  # of JPEG; below it the letters get halos


def main() -> None:
    """Start an instance, and have the browser look at it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--docs", action="store_true", help="take the pictures of the documentation")
    is_for_docs = options.parse_args().docs
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_stand_in()) as matomo,
        ImageServer() as image_server,
    ):
        environment = settings_for(matomo) | {"BROKER_IMAGES_ALLOW_HOSTS": image_server.host}
        instance = Instance(Path(folder) / "data", environment=environment)
        try:
            instance.start()
            test_overlay.run_in_browser(instance, "screens")
            test_dashboard.run_in_browser(instance, "pictures" if is_for_docs else "screens", image_server)
            instance.stop()
        finally:
            instance.end()
    if is_for_docs:
        put_into_docs()
    sys.stdout.write(f"see {PICTURES if is_for_docs else SCREENS}\n")


def put_into_docs() -> None:
    """Copy what was taken to where the pages look for it."""
    for taken in (SCREENS / "docs").glob("*.png"):
        shutil.copy(taken, PICTURES)
    for taken_as, shown_as in OVERLAYS.items():
        with Image.open(SCREENS / f"overlay-{taken_as}.png") as screenshot:
            small = screenshot.convert("RGB").resize(OVERLAY_PX, Image.Resampling.LANCZOS)
            small.save(PICTURES / f"{shown_as}.jpg", quality=QUALITY)


if __name__ == "__main__":
    main()
