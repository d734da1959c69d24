"""Draws docs/architecture.svg from docs/architecture.toml: `python docs/draw.py`, or `make picture`.

Boxes and straight arrows, placed by hand; a picture that is small enough to read needs no layout engine. The
output is the same on every machine, so a test can compare it.
"""

import tomllib
from html import escape
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("architecture.toml")
PICTURE = SOURCE.with_suffix(".svg")

_LINE = 18  # pixels between two lines of text
_FILLS = {"outside": "#f4f4f2", "foreign": "#eef0e4", "process": "#e4eef8", "truth": "#f8eedd"}
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" \
font-size="13">
<title>The processes of the broker and what passes between them</title>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#444"/></marker></defs>
<rect width="{width}" height="{height}" fill="#fff"/>
"""


def draw(source: str) -> str:
    """The picture of what a TOML text describes."""
    picture = tomllib.loads(source)
    boxes = {box["id"]: box for box in picture["box"]}
    parts = [_HEAD.format(**picture)]
    parts += [_box(box) for box in boxes.values()]
    parts += [_arrow(arrow, boxes) for arrow in picture["arrow"]]
    return "".join(parts) + "</svg>\n"


def _box(box: dict[str, Any]) -> str:
    fill = _FILLS[box["kind"]]
    x, y, w, h = (box[name] for name in "xywh")
    parts = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="#444"/>\n']
    top = y + h / 2 - _LINE * (len(box["text"]) - 1) / 2 + 4
    for number, line in enumerate(box["text"]):
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(_text(x + w / 2, top + number * _LINE, line, weight))
    return "".join(parts)


def _arrow(arrow: dict[str, Any], boxes: dict[str, dict[str, Any]]) -> str:
    (x1, y1), (x2, y2) = (_end(boxes[box], side, at) for box, side, at in (arrow["from"], arrow["to"]))
    start = ' marker-start="url(#head)"' if arrow.get("both") else ""
    line = f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" stroke="#444" marker-end="url(#head)"{start}/>\n'
    at = arrow.get("at", 0.5)
    x, y = x1 + (x2 - x1) * at, y1 + (y2 - y1) * at
    halo = ' stroke="#fff" stroke-width="5" paint-order="stroke"'
    return line + _text(x, y + 4, arrow["text"], halo)


def _end(box: dict[str, Any], side: str, at: float) -> tuple[float, float]:
    x, y, w, h = (box[name] for name in "xywh")
    across = {"top": y, "bottom": y + h}
    if side in across:
        return x + w * at, across[side]
    return {"left": x, "right": x + w}[side], y + h * at


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{attributes}>{escape(text)}</text>\n'


if __name__ == "__main__":
    PICTURE.write_text(draw(SOURCE.read_text()))
