"""The forms that the result of an operation can have; the doors render each of them."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

T = TypeVar("T")


@dataclass(slots=True)
class Json:
    """A result that is JSON already: `body` is finished UTF-8 and is sent as it is.

    `status` takes the place of the route's over HTTP. `cursor` is where a list in pages goes on. Nobody
    changes it; it is not frozen because that triples the time of making it.
    """

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """A large result in chunks of UTF-8 that together make one document of `media_type`.

    The REST door sends it as it comes; the WebSocket door joins it, up to its message limit. Either closes
    it, however far it has read.

    Attributes:
        release: gives up what the chunks are made from; called once, behind them, even when none was read.
    """

    chunks: AsyncIterator[bytes]
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    release: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def of_pages(cls, pages: AsyncGenerator[Sequence[T]], show: Callable[[T], BaseModel]) -> "Stream":
        """A JSON array of all in `pages`, none of which is empty, as the models that `show` makes."""
        return cls(_array(pages, show))

    async def close(self) -> None:
        """End it; called once. A generator left half-way would hold what it has until it is collected."""
        try:
            if isinstance(self.chunks, AsyncGenerator):
                await self.chunks.aclose()
        finally:
            if self.release is not None:
                await self.release()


async def _array(pages: AsyncGenerator[Sequence[T]], show: Callable[[T], BaseModel]) -> AsyncIterator[bytes]:
    opening = b"["
    async with aclosing(pages):
        async for page in pages:
            yield opening + b",".join(to_json(show(one), by_alias=True) for one in page)
            opening = b","
    yield b"[]" if opening == b"[" else b"]"


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reply of an upstream server, passed on: over HTTP as it is, over WebSocket as one JSON object."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A model result with HTTP headers of its own (`ETag`, `Cache-Control`, `Location`)."""

    value: BaseModel | list[Any] | dict[str, Any] | None
    headers: Mapping[str, str] = field(default_factory=dict)


Result = BaseModel | list[Any] | dict[str, Any] | Json | Stream | Forwarded | Reply | None
