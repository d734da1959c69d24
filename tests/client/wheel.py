"""The SDK's own wheel in a virtual environment that has it, the libraries that it names, and nothing else."""

import importlib.metadata
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(directory: Path) -> Path:
    """The wheel, built of the sources as they are, without network."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", directory, ROOT / "python"], check=True, cwd=directory)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Install it; returns the environment's Python.

    What it depends on is linked from where the tests have it, one library after another: what the metadata
    does not name cannot be imported.
    """
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    (packages,) = (directory / "lib").glob("python3*/site-packages")
    metadata = importlib.metadata.PathDistribution(next(packages.glob("*.dist-info")))
    for entry in _libraries(metadata.requires or []):
        (packages / entry.name).symlink_to(entry)
    return python


def modules(wheel: Path) -> set[str]:
    """The modules in it."""
    files = [Path(name) for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    return {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}


def _libraries(requirements: list[str]) -> set[Path]:
    """The packages and modules of distributions, and of all that they need, without extras."""
    entries: set[Path] = set()
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        name, _, marker = waiting.pop().partition(";")
        name = re.split(r"[^\w.-]", name, maxsplit=1)[0]
        if "extra" in marker or name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            assert marker, f"{name} is needed and not installed"
            continue
        waiting += found.requires or []
        tops = {Path(file).parts[0] for file in found.files or []} - {"..", "__pycache__"}
        entries |= {Path(str(found.locate_file(top))) for top in tops}
    return entries
