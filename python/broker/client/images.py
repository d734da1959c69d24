"""Images, reached as `client.images`: their URLs, the images themselves, and the caches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.client.engine import Call, Engine, Group
from broker.client.errors import ProtocolError
from broker.client.retry import Safety
from broker.client.wire import NOTHING, Model
from broker.image_urls import image_path

_DESCRIBED = "f=json"
_IMAGE_S = 60.0  # the first image waits until a replica has started
_WARM_S = 120.0  # twenty images, and the start


@dataclass(frozen=True, slots=True)
class FetchedImage:
    """A finished image; `is_hit` says that a cache of the broker had it."""

    body: bytes = field(repr=False)
    media_type: str
    is_hit: bool


class FaceBox(Model, frozen=True):
    """A face, in pixels of the original.

    Attributes:
        landmarks: 68 points (x, y) in the order of iBUG 300-W, or none where the models give none.
    """

    left: float
    top: float
    width: float
    height: float
    score: float
    landmarks: tuple[tuple[float, float], ...]


class ImageDescription(Model, frozen=True):
    """What an original is, and what to paint until the image is there.

    Attributes:
        media_type: of the original; its size is as it is seen.
        color: the most frequent one as `#rrggbb`; None of an image that is wholly transparent.
        thumb_hash: base64.
        faces: None where no detector answered.
    """

    media_type: str = msgspec.field(name="type")
    width: int
    height: int
    frames: int
    has_alpha: bool
    color: str | None
    blur_hash: str
    thumb_hash: str
    faces: tuple[FaceBox, ...] | None


class WarmedImage(Model, frozen=True):
    """What a viewer would be answered now.

    Attributes:
        error: the name of an error, None without one; `message` says what is wrong.
    """

    url: str
    options: str
    status: int
    error: str | None
    message: str | None = None


class Images(Group):
    """Images of one account."""

    def __init__(self, engine: Engine, account: str) -> None:
        super().__init__(engine)
        self._account = account

    def build_url(
        self, source: str, options: str = "-", *, signing_key: str | None = None, expires: int | None = None
    ) -> str:
        """The URL of an image, for a browser or an overlay; asks nobody.

        Args:
            source: the URL of the original.
            options: such as `w=400,h=300,fit=face,f=webp`; `-` only re-encodes.
            signing_key: of the account, where it demands signed URLs; goes with `expires`, in Unix seconds.

        Raises:
            ValueError: one of both is missing.
        """
        target = image_path(self._account, options, source, signing_key=signing_key, expires=expires)
        return str(self._engine.base_url.join(target))

    async def fetch(
        self, source: str, options: str = "-", *, signing_key: str | None = None, expires: int | None = None
    ) -> FetchedImage:
        """The image itself. Takes what `build_url` takes.

        Raises:
            ApiError: `name` says what is wrong: `invalid_options`, `invalid_url`, `forbidden_url`,
                `upstream_failed`, `upstream_timeout` or `unprocessable_image`.
        """
        target = self.build_url(source, options, signing_key=signing_key, expires=expires)
        call = Call("GET", target, bytes, is_signed=False, timeout_s=_IMAGE_S)
        async with self._engine.stream(call) as reply:
            body = await reply.aread()
            media_type = reply.headers.get("Content-Type")
            if media_type is None:
                raise ProtocolError("the image has no Content-Type")
            return FetchedImage(body, media_type, reply.headers.get("X-Cache") == "HIT")

    async def describe(
        self, source: str, *, signing_key: str | None = None, expires: int | None = None
    ) -> ImageDescription:
        """What the original is, with its faces. Raises as `fetch`."""
        target = self.build_url(source, _DESCRIBED, signing_key=signing_key, expires=expires)
        call = Call("GET", target, ImageDescription, is_signed=False, timeout_s=_IMAGE_S)
        return await self._engine.send(call)

    async def purge(self, source: str, *, idempotency_key: str | None = None) -> None:
        """Have every cache of the broker forget a source and all that was made of it, within 5 s.

        Raises:
            InsufficientScope: the caller is no admin.
        """
        await self._purge({"url": source}, idempotency_key)

    async def purge_all(self, *, idempotency_key: str | None = None) -> None:
        """The same for everything of the account."""
        await self._purge({"all": True}, idempotency_key)

    async def warm(self, sources: Iterable[str], options: Iterable[str] = ("-",)) -> tuple[WarmedImage, ...]:
        """Have each of `options` made of each source, at most 20 images; returns when they are there.

        Raises:
            InsufficientScope: the caller may not publish.
            PayloadTooLarge: these would be too many.
        """
        body = {"urls": list(sources), "options": list(options)}
        call = Call(
            "POST", "/images/warm", _Warmed, body=body, own_safety=Safety.REPEATABLE, timeout_s=_WARM_S
        )
        return (await self._engine.send(call)).images

    async def _purge(self, body: dict[str, Any], key: str | None) -> None:
        await self._engine.send(Call("POST", "/images/purge", NOTHING, body=body, key=key))


class _Warmed(Model, frozen=True):
    images: tuple[WarmedImage, ...]
