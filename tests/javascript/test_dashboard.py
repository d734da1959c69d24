"""The dashboard: its size, what is locked, and the whole of it in a real browser."""

import gzip
import json
import re
from pathlib import Path

import pytest

from broker.demo.matomo import StandIn
from broker.rest.sites import SITES
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import PASSWORD, Instance
from tests.javascript.control import serve
from tests.javascript.test_client import run, unpack_browser

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "js" / "dashboard"
SCREENS = ROOT / ".build" / "screens"
BUILT, HEADERS = SITES["dashboard"]
MOST_BYTES = 150 << 10
"""Compressed, of all that the page loads; it has 75 KiB."""


def test_size() -> None:
    loaded = [path for path in BUILT.iterdir() if path.suffix in {".html", ".js", ".css"}]
    assert {path.suffix for path in loaded} == {".html", ".js", ".css"}
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in loaded) <= MOST_BYTES


def test_the_page_names_files_that_are_there_and_nothing_of_others() -> None:
    page = (BUILT / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(named) == 3
    assert [name for name in named if not (BUILT / name).is_file()] == []
    assert not re.search(r"<style|<script>|\son\w+=|style=", page)


def test_the_policy_has_no_loophole() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_what_is_built_in_is_pinned_and_its_licences_are_kept() -> None:
    package = json.loads((DASHBOARD / "package.json").read_text())
    lock = (DASHBOARD / "package-lock.json").read_text()
    locked = json.loads(lock)["packages"]
    assert [
        (path, entry)
        for path, entry in locked.items()
        if path and not ("version" in entry and "integrity" in entry)
    ] == []
    assert "resolved" not in lock
    kept = (BUILT / "licences.txt").read_text()
    for name, version in package["dependencies"].items():
        assert locked[f"node_modules/{name}"]["license"] in {"MIT", "BSD-3-Clause"}
        assert f"{name} {version}\n" in kept


def run_in_browser(
    instance: Instance, name: str, image_server: ImageServer, matomo: StandIn | None = None
) -> None:
    """Run one file of the dashboard's tests against an instance."""
    unpack_browser()
    with serve(instance, matomo) as control:
        run(
            DASHBOARD / ".build" / "test" / f"{name}.test.mjs",
            timeout_s=500,
            ONAIR_URL=instance.url,
            ONAIR_CONTROL=control,
            ONAIR_PASSWORD=PASSWORD,
            ONAIR_SCREENS=str(SCREENS),
            ONAIR_IMAGE=image_server.url("/face.jpg"),
        )


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dashboard", "work", "hostile", "screens", "restart", "large", "loading"])
def test_in_a_browser(name: str, instance: Instance, image_server: ImageServer, matomo: StandIn) -> None:
    run_in_browser(instance, name, image_server, matomo)
