"""Crops of two photographs judged by dlib, and animations by Pillow: the small part of the bench."""

import pytest
import skimage.data

from bench.images.photographs import list_people
from bench.images_quality.animations import OPTIONS, judge_animation, list_animations
from bench.images_quality.command import KEPT, find_faults
from bench.images_quality.crops import has_head, judge_photograph, nose_error, summarise
from bench.images_quality.judge import Judge, Seen, find_wanted
from bench.images_quality.sheet import MODES, Row, draw_sheet
from broker.images.decoding import open_libvips
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import choose_runtime
from broker.images.faces.models import BuiltModels, find_models
from broker.images.geometry import Box, Point, Size


@pytest.fixture(scope="module")
def net() -> BuiltNet:
    open_libvips()
    models = find_models(None, "ssd")
    assert isinstance(models, BuiltModels)
    return BuiltNet(models, choose_runtime(["CPUExecutionProvider"], may_use_gpu=False, threads=1), 0.5)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(None)


@pytest.mark.parametrize("name", ["astronaut", "friends"])
def test_another_detector_sees_the_middle_face_and_its_head_in_every_crop(
    name: str, net: BuiltNet, judge: Judge
) -> None:
    crops = judge_photograph(name, list_people()[name], net, judge)
    assert len(crops) == 6
    assert summarise(crops) == {
        "crops": 6, "right_face": 1, "face_seen_again": 1, "head_in_frame": 1
    }  # fmt: skip


def test_a_photograph_without_a_face_is_not_judged(net: BuiltNet, judge: Judge) -> None:
    assert judge.look(skimage.data.coffee()) == []


def test_a_head_counts_as_far_as_the_source_has_it() -> None:
    face, size = Seen(40, 10, 80, 50, -6), Size(200, 100)
    assert has_head(Box(30, 0, 60, 60), face, size), "what lies above the image is nobody's to show"
    assert not has_head(Box(30, 5, 60, 60), face, size)
    assert not has_head(Box(30, 0, 60, 40), face, size)


def test_the_nearest_face_and_its_nose_are_measured_from_the_middle() -> None:
    far, near = Seen(0, 0, 20, 20, 0), Seen(40, 30, 60, 50, 22, Point(53, 54))
    assert find_wanted([far, near], far.center, Size(100, 100)) is near
    assert nose_error(near, Size(100, 100)) == 0.25
    assert nose_error(far, Size(100, 100)) is None


def test_of_faces_as_near_the_chosen_one_is_wanted() -> None:
    left, right = Seen(10, 40, 30, 60, 32), Seen(69, 40, 89, 60, 32)
    assert find_wanted([left, right], left.center, Size(100, 100)) is left
    assert find_wanted([left, right], None, Size(100, 100)) is right
    assert find_wanted([], None, Size(100, 100)) is None


@pytest.mark.parametrize("options", OPTIONS)
def test_animations_keep_frames_delays_and_loops(options: str) -> None:
    for name, body in list_animations().items():
        figures = judge_animation(body, options)
        assert [figures[claim] for claim in KEPT] == [1, 1, 1], name
        assert figures.get("worst_frame_dB", 99) > 25, name


def test_what_falls_short_is_a_fault() -> None:
    good = {"right_face": 1.0, "head_in_frame": 1.0, "nose_error_most": 0.05}
    assert find_faults({"crops": good}) == []
    bad = {"right_face": 0.99, "nose_error_most": 0.2, "delays_kept": 0.0}
    assert len(find_faults({"crops": bad})) == 3


def test_the_sheet_has_a_cell_for_every_mode(net: BuiltNet) -> None:
    body = bytes(list_people()["astronaut"].jpegsave_buffer())
    sheet = draw_sheet([Row("astronaut", body, MODES[:5])], net, columns=3)
    assert sheet.size == (840, 484)
