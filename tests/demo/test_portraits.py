"""Portraits of the demonstration: the same player looks the same, and nothing is needed."""

from pathlib import Path

import httpx
import pytest

from broker.client import AsyncClient
from broker.demo.portraits import OPTIONS, Portraits, find_photographs, open_portraits
from broker.demo.script import final

pytestmark = pytest.mark.anyio

CLIENT = AsyncClient("http://demo.localhost:8000")  # opens nothing


async def test_photographs_are_served_by_their_names(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jpg", "b.jpg")]
    for path in paths:
        path.write_text(path.name)
    async with open_portraits(paths) as portraits, httpx.AsyncClient() as http:
        assert portraits.photographs == ("/a.jpg", "/b.jpg")
        assert portraits.settings["BROKER_IMAGES_ALLOW_HOSTS"] == portraits.host
        found = [
            await http.get(f"http://{portraits.host}/{name}") for name in ("a.jpg", "b.jpg", "c.jpg", "../a")
        ]
        assert [(each.status_code, each.text) for each in found] == [
            (200, "a.jpg"),
            (200, "b.jpg"),
            (404, ""),
            (404, ""),
        ]


def test_every_player_has_a_portrait_and_always_the_same() -> None:
    portraits = Portraits("127.0.0.1:9", ("/a.jpg", "/b.jpg", "/c.jpg"))
    seen: dict[str, str] = {}
    for cue in final(7):
        told = portraits.add_to(cue.metadata, CLIENT)
        shown = [(each["name"], each) for each in told.get("players", ())]
        if name := told.get("player") or told.get("in"):
            shown.append((name, told))
        for name, each in shown:
            assert each["portrait"] == CLIENT.images.build_url(each["photo"], OPTIONS)
            assert seen.setdefault(name, each["photo"]) == each["photo"]
    assert len(seen) >= 22
    assert len({*seen.values()}) == 3


def test_without_photographs_events_are_as_they_were() -> None:
    for cue in final(7):
        assert Portraits("127.0.0.1:9", ()).add_to(cue.metadata, CLIENT) == cue.metadata


async def test_without_photographs_the_show_says_so(tmp_path: Path) -> None:
    assert "could not fetch" in await Portraits("127.0.0.1:9", ()).show(CLIENT)
    assert not [path for path in find_photographs(tmp_path) if path.is_relative_to(tmp_path)]
