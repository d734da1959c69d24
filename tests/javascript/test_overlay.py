"""The overlays: what events make of them, each host in a browser, OGraf's schema, the bundle for NodeCG."""

import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.deployments.instance import PASSWORD, Instance
from tests.javascript.control import serve
from tests.javascript.test_client import BUILT, ROOT, run, unpack_browser

CHECKOUT = Path(__file__).parents[2]
OVERLAY = CHECKOUT / "python" / "broker" / "overlay"
BUNDLE = CHECKOUT / "examples" / "nodecg"
SCREENS = CHECKOUT / ".build" / "screens"
TESTS = BUILT / "overlay"
SCHEMAS = Path(__file__).parent / "ograf"
"""The schemas of OGraf v1, of ebu/ograf at 33366df (2026-04-15), under its MIT licence."""
MANIFESTS = sorted((CHECKOUT / "js" / "overlay" / "static").glob("*.ograf.json"))
MOST_BYTES = 40 << 10  # of script, compressed, until the first graphic can be seen; fonts come apart


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    def resources() -> Iterator[tuple[str, Resource[Any]]]:
        for path in SCHEMAS.rglob("*.json"):
            content = json.loads(path.read_text())
            yield content["$id"], Resource.from_contents(content, DRAFT202012)

    registry: Registry[Any] = Registry().with_resources(resources())
    main = json.loads((SCHEMAS / "graphics" / "schema.json").read_text())
    return Draft202012Validator(main, registry=registry)


def portrait() -> str:
    """A photograph that anybody may show: NASA's of Eileen Collins."""
    package = find_spec("skimage")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "data" / "astronaut.png")


def run_in_browser(instance: Instance, *names: str) -> None:
    unpack_browser()
    with serve(instance) as control:
        run(
            *(TESTS / f"{name}.test.mjs" for name in names),
            timeout_s=200,
            ONAIR_URL=instance.url,
            ONAIR_CONTROL=control,
            ONAIR_PASSWORD=PASSWORD,
            ONAIR_SCREENS=str(SCREENS),
            ONAIR_PORTRAIT=portrait(),
        )


def test_events_make_states() -> None:
    run(TESTS / "state.test.mjs")


def test_ograf_manifests_are_there() -> None:
    assert [path.name for path in MANIFESTS] == [
        "lower-third.ograf.json",
        "poll.ograf.json",
        "scoreboard.ograf.json",
    ]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_ograf_manifests_fit_their_schema(path: Path, schema: Draft202012Validator) -> None:
    manifest = json.loads(path.read_text())
    assert [error.message for error in schema.iter_errors(manifest)] == []
    assert (OVERLAY / manifest["main"]).is_file()
    Draft202012Validator.check_schema(manifest["schema"])


def test_the_schema_of_ograf_refuses(schema: Draft202012Validator) -> None:
    manifest = json.loads(MANIFESTS[0].read_text())
    del manifest["main"]
    manifest["schema"]["properties"]["name"]["type"] = "text"
    faults = {error.message for error in schema.iter_errors(manifest)}
    assert "'main' is a required property" in faults
    assert "'text' is not valid under any of the given schemas" in faults


def test_the_page_is_small_and_names_no_other_server() -> None:
    scripts = [path for path in OVERLAY.glob("*.js") if path.name.startswith(("overlay", "chunk"))]
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in scripts) <= MOST_BYTES
    for path in (OVERLAY / "index.html", OVERLAY / "page.css"):
        assert "://" not in path.read_text()


def test_fonts_come_with_their_licences() -> None:
    licences = [path.read_text().lower() for path in (OVERLAY / "fonts").glob("*.LICENSE.txt")]
    assert len(licences) == 4
    assert [licence for licence in licences if "sil open font license" not in licence] == []


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_overlays_in_each_host(instance: Instance) -> None:
    run_in_browser(instance, "overlay")


@pytest.mark.cluster
def test_the_page_may_be_framed_and_runs_nothing_inline(instance: Instance) -> None:
    reply = httpx.get(f"{instance.url}/overlay/")
    policy = reply.headers["content-security-policy"]
    assert "frame-ancestors *" in policy
    assert "unsafe" not in policy
    assert "x-frame-options" not in reply.headers
    graphic = httpx.get(f"{instance.url}/overlay/scoreboard.js")
    assert graphic.headers["access-control-allow-origin"] == "*"
    assert graphic.headers["content-type"].startswith("text/javascript")


def test_the_bundle_for_nodecg_is_one() -> None:
    """As NodeCG's own parser of bundles judges: `compatibleRange`, graphics with sizes and files, schemas."""
    package = json.loads((BUNDLE / "package.json").read_text())
    assert package["nodecg"]["compatibleRange"] == "^2.0.0"
    graphics = package["nodecg"]["graphics"]
    assert {"width", "height"} <= set.intersection(*(set(graphic) for graphic in graphics))
    assert len({graphic["file"] for graphic in graphics}) == len(graphics)
    for graphic in graphics:
        assert (BUNDLE / "graphics" / graphic["file"]).is_file()
    for path in (BUNDLE / "configschema.json", *(BUNDLE / "schemas").glob("*.json")):
        Draft7Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.cluster
def test_the_bundle_for_nodecg_keeps_the_score(instance: Instance, tmp_path: Path) -> None:
    bundle = tmp_path / "onair-nodecg"
    shutil.copytree(BUNDLE, bundle)
    (bundle / "node_modules").mkdir()
    (bundle / "node_modules" / "onair-broker").symlink_to(ROOT)
    (bundle / "node_modules" / "ws").symlink_to(ROOT / "node_modules" / "ws")
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.token(), timeout=20) as client:
        client.post("/programs", json={"id": "in-nodecg", "name": "In NodeCG"}).raise_for_status()
        metadata = {"home": 2, "away": 1, "homeTeam": "NOR", "awayTeam": "SOU"}
        events = [
            {"event": "Score#show", "metadata": metadata},
            {"event": "Clock#update", "metadata": {"clock": "67:12"}},
            {"event": "Score#update", "metadata": {"home": 3}},
        ]
        client.post("/programs/in-nodecg/events", json={"events": events}).raise_for_status()
    command = [
        "node",
        str(Path(__file__).parent / "nodecg_stage.mjs"),
        str(bundle),
        instance.url,
        "in-nodecg",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == metadata | {"home": 3, "clock": "67:12", "isOn": True}
