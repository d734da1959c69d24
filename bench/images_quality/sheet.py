"""A contact sheet: every mode beside the source that it was made of, to be looked at."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvips
import skimage.data
from PIL import Image, ImageDraw, ImageFont

from bench.images.photographs import from_array
from bench.images_quality.crops import find_faces
from broker.images.decoding import check_image
from broker.images.faces.net import FaceNet
from broker.images.geometry import Face
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import render

MODES = (
    "w=200,h=200",
    "w=200,h=200,fit=scale",
    "w=200,h=100,fit=fill:top",
    "w=200,h=100,fit=fill",
    "w=200,h=100,fit=fill:bottom-right",
    "w=200,h=200,fit=fit",
    "w=200,h=200,fit=fit:top,f=png",
    "w=200,h=200,fit=crop",
    "w=200,h=200,fit=face",
    "w=200,h=100,fit=face",
    "w=100,h=200,fit=face",
    "w=200,h=200,fit=face-and-shoulders",
    "w=100,h=200,fit=face-and-shoulders",
    "w=200,h=200,fit=face,padding=1",
    "w=200,h=200,fit=face,padding=5",
)
DOCUMENTED = (
    "w=200,h=200",
    "w=200,h=100,fit=fill:top",
    "w=200,h=100,fit=fit,f=png",
    "w=200,h=200,fit=crop",
    "w=200,h=200,fit=face",
    "w=200,h=100,fit=face",
    "w=200,h=200,fit=face-and-shoulders",
    "w=200,h=200,fit=face,padding=4",
)
"""What the documentation shows of the astronaut."""
_CELL, _LABEL, _GAP = 200, 30, 8
_INK, _PAPER, _MARK = (20, 20, 20), (250, 250, 250), (234, 88, 12)
_SQUARE = 10
_LIMITS = DecodeLimits()


@dataclass(frozen=True, slots=True)
class Row:
    """A source and the modes that are shown of it."""

    name: str
    body: bytes
    modes: tuple[str, ...] = MODES


def draw_sheet(rows: list[Row], net: FaceNet, columns: int) -> Image.Image:
    """All rows below each other; a source with more modes than columns takes several lines."""
    lines = [line for row in rows for line in _lines(row, net, columns)]
    width = (columns + 1) * (_CELL + _GAP) + _GAP
    sheet = Image.new("RGB", (width, len(lines) * (_CELL + _LABEL + _GAP) + _GAP), _PAPER)
    for down, line in enumerate(lines):
        for across, (label, image) in enumerate(line):
            at = (_GAP + across * (_CELL + _GAP), _GAP + down * (_CELL + _LABEL + _GAP))
            _put(sheet, image, at, label)
    return sheet


def make(body: bytes, mode: str, faces: tuple[Face, ...]) -> Image.Image:
    """One result, as its readers see it."""
    return Image.open(io.BytesIO(render(check_image(body, _LIMITS), parse_options(mode), faces).body))


def _lines(row: Row, net: FaceNet, columns: int) -> list[list[tuple[str, Image.Image | None]]]:
    is_still = pyvips.Image.new_from_buffer(row.body, "").get_typeof("n-pages") == 0
    faces = find_faces(net, row.body) if is_still else ()
    cells = [(mode, make(row.body, mode, faces)) for mode in row.modes]
    before = (f"before: {row.name}", _marked(row.body, faces))
    starts = range(0, len(cells), columns)
    return [[before if at == 0 else ("", None), *cells[at : at + columns]] for at in starts]


def _marked(body: bytes, faces: tuple[Face, ...]) -> Image.Image:
    """The source with the faces' boxes and noses."""
    marked = Image.open(io.BytesIO(body)).convert("RGBA")
    drawing = ImageDraw.Draw(marked)
    line = max(1, max(marked.size) // 150)
    for face in faces:
        box = (face.left, face.top, face.left + face.width, face.top + face.height)
        drawing.rectangle(box, outline=_MARK, width=line)
        nose = face.nose
        drawing.ellipse((nose.x - line, nose.y - line, nose.x + line, nose.y + line), fill=_MARK)
    return marked


def _put(sheet: Image.Image, image: Image.Image | None, at: tuple[int, int], label: str) -> None:
    """An image in its cell, never enlarged, on squares where it is transparent, in a thin frame."""
    if image is None:
        return
    shown = image.convert("RGBA")
    shown.thumbnail((_CELL, _CELL))
    ground = _squares(*shown.size)
    ground.alpha_composite(shown)
    sheet.paste(ground.convert("RGB"), at)
    drawing = ImageDraw.Draw(sheet)
    frame = (at[0] - 1, at[1] - 1, at[0] + shown.width, at[1] + shown.height)
    drawing.rectangle(frame, outline=(160, 160, 160))
    drawing.multiline_text(
        (at[0], at[1] + _CELL + 2), _wrapped(label), fill=_INK, font=ImageFont.load_default(11)
    )


def _wrapped(label: str) -> str:
    head, comma, tail = label.partition(",fit=")
    return f"{head}\nfit={tail}" if comma else label


def _squares(width: int, height: int) -> Image.Image:
    down, across = np.mgrid[:height, :width] // _SQUARE
    shade = np.where((down + across) % 2, 255, 215).astype(np.uint8)
    return Image.fromarray(np.dstack([shade, shade, shade])).convert("RGBA")


def list_rows(people: Mapping[str, pyvips.Image], animations: Mapping[str, bytes]) -> list[Row]:
    """Photographs, one without a face, a drawing with transparency, and the animations' first frames."""
    rows = [Row(name, _encoded(image)) for name, image in people.items()]
    faceless = tuple(mode for mode in MODES if "fit=face" in mode)
    rows.append(Row("no face: by attention", _encoded(from_array(skimage.data.coffee())), faceless[:8]))
    moving = tuple(f"{mode},f=webp" for mode in MODES[:8] if ",f=" not in mode)
    rows.append(Row("transparent", _encoded(_drawing()), ("w=200,f=jpg", *moving)))
    rows += [Row(f"{name} animation", body, moving) for name, body in animations.items()]
    return rows


def _drawing() -> pyvips.Image:
    """A disc whose edge fades, wider than high."""
    places = pyvips.Image.xyz(480, 320)
    distance = ((places[0] - 240) ** 2 + (places[1] - 160) ** 2) ** 0.5
    opacity = (distance * -2 + 300).cast("uchar")
    red = (places[0] * 0.5).cast("uchar")
    return red.bandjoin([(places[1] * 0.75).cast("uchar"), 120, opacity]).copy(interpretation="srgb")


def _encoded(image: pyvips.Image) -> bytes:
    return bytes(image.pngsave_buffer() if image.hasalpha() else image.jpegsave_buffer(Q=92))


def draw_documented(astronaut: pyvips.Image, net: FaceNet) -> Image.Image:
    """The illustration of docs/images.md."""
    return draw_sheet([Row("NASA", _encoded(astronaut), DOCUMENTED)], net, columns=4)


def write_sheet(sheet: Image.Image, path: Path) -> None:
    """As PNG or JPEG, by its name, into a directory that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, optimize=True, quality=85)
