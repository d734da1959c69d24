"""The face models, and whether their files are complete.

A directory with our index is one that the build converted; its files are checked against the checksums in the
index. Any other directory is the operator's, with models in insightface's format.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from broker.images.errors import FacesUnavailable

INDEX = "models.json"
SSD = "ssd.onnx"
TINY = "tiny.onnx"
LANDMARKS = "landmarks.onnx"
BUILT = Path(__file__).parent / "built"
"""Where `make build` puts what it converts."""


class _Index(msgspec.Struct, frozen=True):
    origin: str
    sha256: dict[str, str]


@dataclass(frozen=True, slots=True)
class BuiltModels:
    """Files that the build converted, checked.

    Attributes:
        detector: SSD or TINY's file; landmarks: the 68 points'.
        origin: the package that they come from.
    """

    detector: Path
    landmarks: Path
    origin: str


@dataclass(frozen=True, slots=True)
class InsightFaceModels:
    """An operator's directory of models in insightface's format."""

    directory: Path


Models = BuiltModels | InsightFaceModels


def find_models(directory: Path | None, detector: str) -> Models:
    """The models of a directory, or those that the build made.

    Args:
        detector: `ssd` or `tiny`, of built models.

    Raises:
        FacesUnavailable: there are none, or a file is missing or not what was built.
    """
    place = directory or BUILT
    if directory is not None and not (place / INDEX).is_file():
        if not any(place.glob("*.onnx")):
            raise FacesUnavailable(f"{place} has no models (*.onnx)")
        return InsightFaceModels(place)
    try:
        index = msgspec.json.decode((place / INDEX).read_bytes(), type=_Index)
    except OSError:
        raise _not_built() from None
    except msgspec.DecodeError as error:
        raise FacesUnavailable(f"{place / INDEX} cannot be read: {error}") from error
    chosen = {"ssd": SSD, "tiny": TINY}[detector]
    for file in (chosen, LANDMARKS):
        _require_whole(place / file, index.sha256.get(file))
    return BuiltModels(place / chosen, place / LANDMARKS, index.origin)


def name_models(directory: Path | None, detector: str) -> str:
    """Which models a configuration means, for operators; their content is not looked at.

    Raises:
        FacesUnavailable: there are none.
    """
    place = directory or BUILT
    if (place / INDEX).is_file():
        return f"{directory or 'built'}, {detector}"
    if directory is None:
        raise _not_built()
    if not any(place.glob("*.onnx")):
        raise FacesUnavailable(f"{place} has no models (*.onnx)")
    return str(place)


def identify_models(directory: Path | None) -> str:
    """What tells these models from others, empty without any. Reads the index of built models, but no model.

    An operator's files have no checksums, and are hundreds of megabytes: name, size and time stand for each.
    """
    place = directory or BUILT
    try:
        return (place / INDEX).read_text()
    except OSError:
        files = [(file.name, file.stat()) for file in sorted(place.glob("*.onnx"))]
    return "\n".join(f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in files)


def _not_built() -> FacesUnavailable:
    return FacesUnavailable("the build has made no face models; run `make build` with npm online")


def _require_whole(file: Path, digest: str | None) -> None:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise FacesUnavailable(f"{file} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise FacesUnavailable(f"{file} differs from the build; run `make build` again")
