"""The tutorial and the README hold: each command runs as it stands there, and prints what the page says."""

import re
from pathlib import Path

import httpx
import pytest

from tests.deployments.instance import PASSWORD, Instance
from tests.deployments.page_commands import ROOT, Command, read_page, run_page

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

URL = "http://localhost:8000"
START = ["make build", f"BROKER_ADMIN_PASSWORD={PASSWORD} .venv/bin/broker up"]


def test_the_first_hour_runs_as_it_is_written(instance: Instance, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "first-hour.md").read_text()
    start, _, rest = page.partition("Go on in a second terminal")
    assert [part.text for part in read_page(start) if isinstance(part, Command)] == START
    for command, output in run_page(rest.replace(URL, instance.url), tmp_path, {"BROKER_URL": instance.url}):
        assert command.is_printed_by(output), f"$ {command.text}\n{output}"


def test_addresses_of_the_first_hour_are_there(instance: Instance) -> None:
    page = (ROOT / "docs" / "first-hour.md").read_text()
    addresses = set(re.findall(rf"<({URL}[^>]*)>", page))
    assert len(addresses) == 3
    for address in addresses:
        reply = httpx.get(address.replace(URL, instance.url), timeout=20)
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
