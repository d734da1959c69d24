"""`python -m bench capacity`: nodes, cores, memory and network of a show, and what is full first.

    python -m bench capacity [--viewers N] [--programs P] [--events-per-s R] [--votes N] …
    python -m bench capacity --calibrate
    python -m bench capacity --check

Without options of a scene it shows three: ten million viewers of one program, 1,000 programs with 10,000
viewers each, five million votes in 30 s. `bench.capacity.model` has the arithmetic,
`bench/capacity/constants.json` every figure that goes into it, with its unit and source. `--calibrate`
measures some of them on this machine and writes all to `capacity.json` in `bench/results/`, which
`--constants` reads. `--check` compares predictions with runs; its exit status is 1 if one is off by more than
20 %.
"""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.capacity import report
from bench.capacity.calibration import calibrate
from bench.capacity.check import compare_recorded, compare_runs
from bench.capacity.constants import STANDING, Constants, ConstantsError
from bench.capacity.model import plan
from bench.capacity.published import compare
from bench.capacity.scene import SCENES, Hardware, OptionError, Scene
from bench.child import ChildError
from bench.contenders import build_examples
from bench.output import RESULTS, open_console
from bench.product import ProductError

CALIBRATED = RESULTS / "capacity.json"


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    console = open_console()
    try:
        constants = Constants.read(arguments.constants)
        scenes, hardware = read_scenes(arguments), read_hardware(arguments)
        if arguments.check:
            return check(constants, console)
        if arguments.calibrate:
            constants = measure(constants, console)
        show(scenes, hardware, constants, console, with_constants=arguments.show_constants)
    except (OptionError, ConstantsError) as error:
        parser.error(str(error))
    except (ChildError, ProductError, TimeoutError) as error:
        console.print(f"[red]{error}")
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options; those of a scene and of the hardware are None where they were not given."""
    parser = argparse.ArgumentParser(prog="python -m bench capacity", description=__doc__.splitlines()[0])
    scene = parser.add_argument_group("scene")
    scene.add_argument("--viewers", type=int, help="of all programs together")
    scene.add_argument("--programs", type=int, help="published to alike (1)")
    scene.add_argument("--events-per-s", type=float, help="of each program (2)")
    scene.add_argument("--message-bytes", type=int, help="of a notification (300)")
    scene.add_argument("--deadline-s", type=float, help="until an event is with its last viewer (1)")
    scene.add_argument("--join-s", type=float, help="within which all viewers come (300)")
    scene.add_argument("--votes", type=int, help="of one poll (0)")
    scene.add_argument("--vote-s", type=float, help="within which they come (30)")
    scene.add_argument("--tls", action=argparse.BooleanOptionalAction, help="of the gateways' own (yes)")
    scene.add_argument(
        "--alive", action=argparse.BooleanOptionalAction, help="signs of life, as SDKs ask (yes)"
    )
    node = parser.add_argument_group("nodes and PostgreSQL")
    node.add_argument("--cores", type=int, help="of a node (16)")
    node.add_argument("--memory-gb", type=float, help="of a node (64)")
    node.add_argument("--gbit-per-s", type=float, help="of a node's network (10)")
    node.add_argument("--postgres-connections", type=int, help="max_connections (500)")
    node.add_argument("--busy", type=float, help="share of a node that a plan may use (0.7)")
    parser.add_argument("--constants", type=Path, default=STANDING, metavar="FILE", help="other constants")
    parser.add_argument("--show-constants", action="store_true", help="print them with their sources")
    parser.add_argument("--calibrate", action="store_true", help="measure on this machine, two minutes")
    parser.add_argument("--check", action="store_true", help="compare predictions with runs, two minutes")
    return parser


def read_scenes(arguments: argparse.Namespace) -> dict[str, Scene]:
    """The scene that the options describe, or the three that stand here. Raises OptionError."""
    given = _given(arguments, Scene)
    if not given:
        return SCENES
    if "viewers" not in given:
        raise OptionError("--viewers: a scene needs a number of viewers")
    return {"this scene": Scene(**given)}


def read_hardware(arguments: argparse.Namespace) -> Hardware:
    """What the options say that it runs on. Raises OptionError."""
    return Hardware(**_given(arguments, Hardware))


def show(
    scenes: dict[str, Scene],
    hardware: Hardware,
    constants: Constants,
    console: Console,
    *,
    with_constants: bool,
) -> None:
    """Print the plans, and what is behind them. Raises OptionError."""
    plans = {name: (scene, plan(scene, hardware, constants)) for name, scene in scenes.items()}
    if with_constants:
        console.print(report.build_constants_table(constants))
    console.print(report.build_plans_table(plans, hardware))
    for name, (_, found) in plans.items():
        console.print(report.build_uses_table(name, found))
        console.print(report.say_limits(name, found))
        console.print(report.build_bounds_table(name, found, constants["relay_hop_ms"]))
    console.print(report.build_comparison_table(compare(constants)))


def measure(constants: Constants, console: Console) -> Constants:
    """Calibrate, write the file and say where it is."""
    with console.status("building the load client") as status:
        build_examples()
        constants = calibrate(constants, status.update)
    constants.write(CALIBRATED)
    console.print(f"written to {CALIBRATED}")
    return constants


def check(constants: Constants, console: Console) -> int:
    """Compare with runs, recorded and of now; returns the exit status."""
    recorded = compare_recorded(constants)
    with console.status("building the load client") as status:
        build_examples()
        made, faults = compare_runs(status.update)
    console.print(report.build_check_table("Runs that stand in bench/README.md", recorded))
    console.print(report.build_check_table("Runs of now", made))
    for fault in faults:
        console.print(f"[red]{fault}")
    return 1 if faults or not all(one.holds for one in [*recorded, *made]) else 0


def _given(arguments: argparse.Namespace, kind: type[Scene] | type[Hardware]) -> dict[str, Any]:
    """The options of a dataclass that were given."""
    values = {field.name: getattr(arguments, field.name) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}
