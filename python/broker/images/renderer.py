"""What makes images, by name, so that an upgrade serves none that the version before has made.

The same source and options may give other pixels when our code changes, libvips with its codecs, or the
models and settings by which faces are found. Each kept result and each kept set of faces bears the name of
what made it, and one with another name is as if it were not there. The name of our code is a digest of this
whole room: a number that somebody has to raise would be forgotten. libvips comes with `pyvips-binary`, whose
version names the codecs too; Pillow reads and writes JPEGs with a libjpeg of its own, and crates of native
code scale them and make placeholders. The versions are those of the packages' metadata, because who serves
loads no decoder.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from broker._native import IMAGE_CRATES
from broker.images.faces.models import identify_models
from broker.images.options import Format, Options
from broker.settings import Settings

_ROOM = Path(__file__).parent
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Renderer:
    """The names of what makes images.

    Attributes:
        pixels: our code, libvips, Pillow, the crates, and how JPEGs are shrunk.
        faces: the models, and the settings by which a box is a face.
    """

    pixels: str
    faces: str

    def name_faces(self) -> str:
        """What finds the faces of a source; the detector sees a preview that we make."""
        return f"{self.pixels} {self.faces}"

    def name_of(self, options: Options) -> str:
        """What makes an image with these options."""
        shows_faces = options.fit.is_face or options.format is Format.JSON
        return self.name_faces() if shows_faces else self.pixels


def find_renderer(settings: Settings, room: Path = _ROOM) -> Renderer:
    """The renderer of this installation. Blocks; reads the index or the list of the models, and our code.

    Args:
        room: where that is.
    """
    models = Path(settings.faces_models) if settings.faces_models else None
    faces = (identify_models(models), settings.faces_detector, f"{settings.faces_min_score:g}")
    codecs = f"{_libvips()} {version('pillow')} {IMAGE_CRATES}"
    pixels = f"{_digest(_code(room))} {codecs} {settings.images_shrink}"
    return Renderer(pixels, _digest(part.encode() for part in faces))


def _libvips() -> str:
    try:
        return version("pyvips-binary")
    except PackageNotFoundError:  # pyvips was installed without it, and takes the libvips of the system
        return f"system {version('pyvips')}"


def _code(room: Path) -> Iterator[bytes]:
    for file in sorted(room.rglob("*.py")):
        yield str(file.relative_to(room)).encode()
        yield file.read_bytes()


def _digest(parts: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[: 2 * _DIGEST_BYTES]
