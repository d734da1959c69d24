"""The map of the project is as the project is."""

import re
import tomllib
from pathlib import Path

from docs.draw import PICTURE, SOURCE, draw

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_is_current() -> None:
    assert draw(SOURCE.read_text()) == PICTURE.read_text(), "run `make picture`"


def test_every_room_is_on_the_map() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {room.partition(".")[0] for layer in contracts[0]["layers"] for room in layer.split(" | ")}
    table = PAGE.partition("## Rooms")[2].partition("The native crate")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert {room for row in rows for room in re.findall(r"`(\w+)/?`", row)} == layers


def test_every_file_on_the_map_is_there() -> None:
    named = set(re.findall(r"`([\w<>./]+/(?:[\w<>]+\.(?:py|rs|md))?)`", PAGE))
    assert len(named) > 60
    lacking = [
        name
        for name in sorted(named)
        if "<" not in name
        and not any(
            (base / name).exists() for base in (ROOT, ROOT / "python" / "broker", ROOT / "native")
        )
    ]
    assert lacking == []
