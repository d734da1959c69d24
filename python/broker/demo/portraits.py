"""Portraits of the players: photographs from installed packages, on a server of the demonstration.

Nothing of them is part of the product. Where the packages are not installed the events have no portraits.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from broker.client import AsyncClient, ClientError
from broker.demo.serving import served

OPTIONS = "w=300,h=300,fit=face,f=webp"
_CHECKOUT = Path(__file__).parents[3]
# `make build` fetches the package for its face models; photographs of groups, each cropped to one face.
_OF_MODELS = Path(".build", "faces", "node_modules", "@vladmandic", "face-api", "demo")


def find_photographs(checkout: Path = _CHECKOUT) -> tuple[Path, ...]:
    """The photographs that are there."""
    found = sorted((checkout / _OF_MODELS).glob("sample*.jpg"))
    images = find_spec("skimage")
    if images is not None and images.origin is not None:
        found += Path(images.origin).parent.glob("data/astronaut.png")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Portraits:
    """Who looks how.

    Attributes:
        host: `host:port` of the server.
        photographs: their paths there; none without the packages.
    """

    host: str
    photographs: Sequence[str]

    @property
    def settings(self) -> dict[str, str]:
        """What the product is told, by names in the environment: to take them, and to have them ready."""
        return {
            "BROKER_IMAGES_ALLOW_HOSTS": self.host,
            "BROKER_IMAGES_WARM_FIELDS": "photo,players.photo",
            "BROKER_IMAGES_WARM_OPTIONS": OPTIONS,
        }

    def add_to(self, metadata: Mapping[str, Any], client: AsyncClient) -> dict[str, Any]:
        """An event's metadata with the portraits of its players."""
        added = dict(metadata)
        if not self.photographs:
            return added
        name = metadata.get("player") or metadata.get("in")
        if name:
            added |= self._of(name, client)
        if "players" in metadata:
            added["players"] = [each | self._of(each["name"], client) for each in metadata["players"]]
        return added

    async def show(self, client: AsyncClient) -> str:
        """A line that says where a portrait is, once all of them are there."""
        if not self.photographs:
            return "portraits: none, as `make build` could not fetch the face models"
        photos = [f"http://{self.host}{path}" for path in self.photographs]
        try:
            made = await asyncio.gather(*(client.images.fetch(photo, OPTIONS) for photo in photos))
        except ClientError as error:
            return f"portraits: {error}"
        first = client.images.build_url(photos[0], OPTIONS)
        return f"portraits: {len(made)} photographs, cropped around a face; see {first}"

    def _of(self, name: str, client: AsyncClient) -> dict[str, str]:
        """The photograph of a player, always the same, and the URL that an overlay shows."""
        photo = f"http://{self.host}{self.photographs[zlib.crc32(name.encode()) % len(self.photographs)]}"
        return {"photo": photo, "portrait": client.images.build_url(photo, OPTIONS)}


@asynccontextmanager
async def open_portraits(photographs: Sequence[Path]) -> AsyncIterator[Portraits]:
    """Serve photographs by their names, on a free port of this machine."""
    files = {f"/{path.name}": path for path in photographs}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        path = files.get(scope["path"])
        body = b"" if path is None else await asyncio.to_thread(path.read_bytes)
        status = 404 if path is None else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with served("portraits", app) as host:
        yield Portraits(host, tuple(files))
