"""Things that are done to the gateway, in turns, and what they gave."""

from collections.abc import Callable, Mapping

from bench.child import ChildError
from bench.contenders import build_examples
from bench.output import conclude, open_console, start_results
from bench.product import ProductError
from bench.report import Medians, build_scenes_table, take_median

Outcome = tuple[dict[str, Medians], list[str]]
"""Scene → figures, and what went wrong."""


def measure_scenes(
    part: str,
    runs: int,
    acts: Mapping[str, Callable[[], Outcome]],
    targets: Mapping[str, Mapping[str, float]] | None = None,
    *,
    with_load_client: bool = True,
) -> int:
    """Run every act `runs` times, in turns, print and write the medians; returns the exit status.

    Args:
        targets: scene → figure → what its median must stay below; more is a fault.
        with_load_client: build it before, as the acts use it.
    """
    console = open_console()
    if with_load_client:
        with console.status("building the load client"):
            build_examples()
    results = start_results(console, runs)
    faults: list[str] = []
    gathered: dict[str, list[Medians]] = {}
    for turn in range(runs):
        for name, act in acts.items():
            with console.status(f"{name}, run {turn + 1} of {runs}"):
                try:
                    scenes, seen = act()
                except (ChildError, ProductError) as error:
                    scenes, seen = {}, [f"{name}: {error}"]
            faults += seen
            for scene, figures in scenes.items():
                gathered.setdefault(scene, []).append(figures)
    results.scenes[part] = {scene: take_median(figures) for scene, figures in gathered.items()}
    faults += find_missed(results.scenes[part], targets or {})
    console.print(build_scenes_table(part.capitalize(), results.scenes[part], runs))
    return conclude(results, faults, console)


def find_missed(scenes: Mapping[str, Medians], targets: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The figures that have reached what they must stay below."""
    return [
        f"{scene}: {figure} is {scenes[scene][figure]:.2f} instead of less than {limit:g}"
        for scene, limits in targets.items()
        for figure, limit in limits.items()
        if figure in scenes.get(scene, {}) and scenes[scene][figure] >= limit
    ]
