"""What an upgrade changes is made again, and nothing else is."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import PIL
import pytest
import pyvips

from broker import images
from broker._native import IMAGE_CRATES
from broker.concurrency.shares import Asker
from broker.images.faces.models import INDEX
from broker.images.geometry import Face, Point
from broker.images.renderer import Renderer, find_renderer
from broker.settings import Settings
from tests.fetching.upstream import open_fetcher, open_upstream, reply
from tests.images.samples import gradient
from tests.images.stage import KnownFaces, open_stage

SMALL = bytes(gradient(160, 120).pngsave_buffer())
FACE = Face(40, 30, 20, 20, 0.9, tuple(Point(50, 40) for _ in range(68)))
OLD = Renderer("one", "models")
PLAIN, CROP, DESCRIPTION = "w=50", "w=50,h=50,fit=face", "f=json"


@pytest.mark.parametrize(
    ("new", "hits", "searches"),
    [
        pytest.param(OLD, {PLAIN: True, CROP: True, DESCRIPTION: True}, 0, id="the same"),
        pytest.param(
            Renderer("two", "models"), {PLAIN: False, CROP: False, DESCRIPTION: False}, 1, id="other code"
        ),
        pytest.param(
            Renderer("one", "others"), {PLAIN: True, CROP: False, DESCRIPTION: False}, 1, id="other models"
        ),
    ],
)
def test_what_another_renderer_made_is_made_again(
    tmp_path: Path, new: Renderer, hits: dict[str, bool], searches: int
) -> None:
    async def go() -> None:
        async with open_upstream(reply(body=SMALL)) as upstream:
            for renderer in (OLD, new):
                faces = KnownFaces((FACE,))
                async with open_stage(
                    tmp_path, open_fetcher(upstream.port), faces=faces, renderer=renderer
                ) as stage:
                    found = {
                        options: (await stage.service.get(Asker("demo"), options, upstream.url())).is_hit
                        for options in hits
                    }
            assert found == hits
            assert len(faces.asked) == searches
            assert len(upstream.seen) == 1  # the source is what it was

    asyncio.run(go())


def test_what_became_old_by_an_upgrade_is_not_confirmed_by_its_source(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_upstream(reply(body=SMALL)) as upstream:
            for renderer in (OLD, Renderer("two", "models")):
                async with open_stage(tmp_path, open_fetcher(upstream.port), renderer=renderer) as stage:
                    if renderer != OLD:
                        stage.clock.later_s = 90_000  # the result is old, and its source unchanged
                    assert not (await stage.service.get(Asker("demo"), PLAIN, upstream.url())).is_hit
                    assert stage.workers.tasks == ["render"]

    asyncio.run(go())


def settings_of(models: Path, **more: object) -> Settings:
    return Settings(faces_models=str(models), **more)  # type: ignore[arg-type]


def models_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "detector.onnx").write_bytes(b"1234")
    return folder


def write_later(file: Path, content: bytes) -> None:
    before = file.stat().st_mtime_ns
    file.write_bytes(content)
    os.utime(file, ns=(before + 1, before + 1))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda file: write_later(file, b"12345"), id="a larger model"),
        pytest.param(lambda file: write_later(file, b"4321"), id="another of the same size"),
        pytest.param(lambda file: file.rename(file.with_name("other.onnx")), id="another name"),
        pytest.param(lambda file: (file.parent / INDEX).write_text("{}"), id="models of the build"),
    ],
)
def test_other_models_have_another_name(tmp_path: Path, change: Callable[[Path], object]) -> None:
    models = models_in(tmp_path / "models")
    before = find_renderer(settings_of(models))
    assert find_renderer(settings_of(models)) == before
    change(models / "detector.onnx")
    after = find_renderer(settings_of(models))
    assert (after.pixels == before.pixels, after.faces == before.faces) == (True, False)


def test_settings_of_faces_are_a_part_of_the_name(tmp_path: Path) -> None:
    models = models_in(tmp_path / "models")
    names = {
        find_renderer(settings_of(models, **more)).faces
        for more in ({}, {"faces_detector": "tiny"}, {"faces_min_score": 0.6}, {"faces_timeout_s": 9.0})
    }
    assert len(names) == 3  # how long a search may take changes no face


def test_how_jpegs_are_shrunk_is_a_part_of_the_name() -> None:
    assert find_renderer(Settings()) == find_renderer(Settings(images_shrink="fine"))
    assert find_renderer(Settings()).pixels != find_renderer(Settings(images_shrink="fast")).pixels


def test_other_code_has_another_name(tmp_path: Path) -> None:
    room = Path(images.__file__).parent
    for file in room.rglob("*.py"):
        copied = tmp_path / file.relative_to(room)
        copied.parent.mkdir(exist_ok=True)
        copied.write_bytes(file.read_bytes())
    before = find_renderer(Settings())
    assert find_renderer(Settings(), tmp_path) == before
    with (tmp_path / "rendering.py").open("a") as changed:
        changed.write("\n")
    after = find_renderer(Settings(), tmp_path)
    assert (after.pixels == before.pixels, after.faces == before.faces) == (False, True)


def test_the_name_has_the_versions_of_what_decodes() -> None:
    loaded = ".".join(str(pyvips.version(part)) for part in range(3))
    _, libvips, pillow, *crates, _ = find_renderer(Settings()).pixels.split(" ")
    assert libvips.startswith(loaded)
    assert pillow == PIL.__version__
    assert crates == IMAGE_CRATES.split()
