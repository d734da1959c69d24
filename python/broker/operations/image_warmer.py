"""Produces images in advance, by requesting them from the image proxy.

So an image is made as a viewer's would be, by whichever replica the ingress chooses; the first one starts
where there is none. Besides those who ask for it, published events are read for URLs, at the fields that the
settings name. That never delays a publish: a URL is put in a queue when the event has been committed, and
what finds the queue full is dropped and counted.

An image may have been purged a moment ago, for the same change that asks for it now. So each request names
the newest purge, which the replica has to know before it answers from a cache (`purge_notices`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import httpx
import orjson

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.errors import BrokerError, Unavailable
from broker.image_urls import image_path
from broker.images.account_rules import AccountRules
from broker.images.errors import InvalidOptions
from broker.images.options import parse_options
from broker.images.purge_notices import HEADER, write_notice
from broker.metrics import catalogue
from broker.metrics.counts import Count, Sample
from broker.settings import SettingError, Settings

_AT_ONCE = 4  # images of one request, or of all events
_QUEUE = 1_000
_EVENT_URLS = 20  # of one event
_EVENT_VALUES = 300  # of one event that are looked at: 40 µs for a line-up, 0.4 ms at worst
_VALUES = 3_000  # of all events of one publish: a batch of a thousand takes some milliseconds at most
_URL_CHARACTERS = 2_048
_RECENT = 10_000
_RECENT_S = 300.0  # as long as an error is remembered
_SIGNED_S = 600  # a signature of our own is good for
_SPARE_S = 5.0  # beyond what an image may take, until its error is here

_log = logging.getLogger(__name__)

WantedImage = tuple[str, str]
"""URL and options of an image."""


class Told(NamedTuple):
    """What a request for an image was answered."""

    status: int
    error: str | None = None
    is_hit: bool = False
    message: str | None = None


_TOO_LATE = Told(Unavailable.status, Unavailable.name, message="the image was not there in time; try again")


def check_options(settings: Settings) -> None:
    """Raises SettingError for options that no image can have; presets are the accounts' own."""
    for options in settings.images_warm_options.split():
        if "preset=" not in options:
            try:
                parse_options(options)
            except InvalidOptions as error:
                raise SettingError(f"BROKER_IMAGES_WARM_OPTIONS={options}: {error.message}") from None


class ImageWarmer:
    """Produces the images of published events. Call `run` in a task if `is_on`, and `close` at the end.

    Args:
        host: of the ingress of this node.
        rules: of accounts, for the keys of those that demand signed URLs.
        newest_purge: its number.
    """

    def __init__(
        self,
        settings: Settings,
        host: str,
        rules: Callable[[str], Awaitable[AccountRules]],
        newest_purge: Callable[[], Awaitable[int]],
        clock: Clock,
    ) -> None:
        self._base_url = httpx.URL(scheme="http", host=host, port=settings.http_port)
        self._rules = rules
        self._newest_purge = newest_purge
        self._ingress_key = settings.ingress_key
        self._clock = clock
        self._timeout_s = settings.images_timeout_s + _SPARE_S
        self._warm_s = min(2 * self._timeout_s, max(1.0, settings.http_timeout_s - _SPARE_S))
        self._fields = tuple(tuple(field.split(".")) for field in settings.images_warm_fields)
        self._options = tuple(settings.images_warm_options.split()) or ("-",)
        self._queue: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue(_QUEUE)
        self._recent: TtlCache[tuple[str, str, str], bool] = TtlCache(clock, _RECENT_S, _RECENT)
        self._count = Count(catalogue.IMAGE_WARMINGS)
        self._http: httpx.AsyncClient | None = None  # most processes never need one

    @property
    def is_on(self) -> bool:
        """Whether published events are read for images."""
        return bool(self._fields)

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()

    def figures(self) -> Iterator[Sample]:
        """What became of the images of events."""
        yield from self._count.samples()

    def note(self, account: str, events: Sequence[Mapping[str, Any] | None]) -> None:
        """Have the images of committed events made soon; returns at once and raises nothing.

        Args:
            events: their metadata. Only so many of their values are looked at.
        """
        left = _VALUES
        for place, metadata in enumerate(events):
            if left <= 0:
                self._count.add("dropped", amount=len(events) - place)
                return
            urls, looked_at = _find_urls(metadata, self._fields, min(left, _EVENT_VALUES))
            left -= looked_at
            for url in urls:
                self._enqueue(account, url)

    def _enqueue(self, account: str, url: str) -> None:
        for options in self._options:
            wanted = account, url, options
            if wanted in self._recent:
                continue
            try:
                self._queue.put_nowait(wanted)
            except asyncio.QueueFull:
                self._count.add("dropped")
            else:
                self._recent.put(wanted, True)

    async def run(self) -> None:
        """Make what was noted, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._make_noted())

    async def warm(self, account: str, wanted: Sequence[WantedImage]) -> list[Told]:
        """Have images made; returns what each is answered, those that take too long as unavailable.

        Raises:
            Unavailable: the account's rules are not known, or the database is unavailable.
        """
        told, purge = [_TOO_LATE] * len(wanted), await self._newest_purge()
        left = iter(enumerate(wanted))

        async def make() -> None:
            for place, (url, options) in left:
                told[place] = await self._ask(account, url, options, purge)

        await self._rules(account)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._warm_s), asyncio.TaskGroup() as tasks:
                for _ in range(min(_AT_ONCE, len(wanted))):
                    tasks.create_task(make())
        return told

    async def _make_noted(self) -> None:
        while True:
            account, url, options = await self._queue.get()
            told = await self._ask_anew(account, url, options)
            if told.error is None:
                self._count.add("hit" if told.is_hit else "made")
            else:
                self._count.add("failed")
                _log.info(
                    "image_not_warmed",
                    extra={"account": account, "options": options, "error": told.error},
                )

    async def _ask_anew(self, account: str, url: str, options: str) -> Told:
        """Ask for the image of an event, which may have been purged while it was queued."""
        try:
            purge = await self._newest_purge()
        except Unavailable as error:
            return Told(error.status, error.name, message=error.message)
        return await self._ask(account, url, options, purge)

    async def _ask(self, account: str, url: str, options: str, purge: int) -> Told:
        """Ask for an image without its bytes; an error is asked for again, for its name."""
        try:
            async with asyncio.timeout(self._timeout_s):
                target = await self._target(account, url, options)
                told = {HEADER: write_notice(self._ingress_key, purge)}
                reply = await self._opened().head(target, headers=told)
                if reply.status_code == httpx.codes.OK:
                    return Told(reply.status_code, is_hit=reply.headers.get("x-cache") == "HIT")
                if reply.status_code != Unavailable.status:
                    reply = await self._opened().get(target, headers=told)
                if reply.status_code == httpx.codes.OK:  # it is there now
                    return Told(reply.status_code)
                return _refused(reply)
        except (httpx.HTTPError, TimeoutError) as error:
            _log.info("image_door_away", extra={"cause": repr(error)})
            return _TOO_LATE
        except BrokerError as error:
            return Told(error.status, error.name, message=error.message)

    async def _target(self, account: str, url: str, options: str) -> str:
        keys = (await self._rules(account)).signing_keys
        if not keys:
            return image_path(account, options, url)
        expires = self._clock.now_ms() // 1_000 + _SIGNED_S
        return image_path(account, options, url, signing_key=keys[0], expires=expires)

    def _opened(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                base_url=self._base_url,
                timeout=self._timeout_s,
                limits=httpx.Limits(max_connections=4 * _AT_ONCE, max_keepalive_connections=_AT_ONCE),
                trust_env=False,
            )
        return self._http


def _refused(reply: httpx.Response) -> Told:
    try:
        body = orjson.loads(reply.content)
        return Told(reply.status_code, str(body["error"]), message=body.get("error_description"))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Told(reply.status_code, Unavailable.name)  # it is no answer of ours


def _find_urls(
    metadata: Mapping[str, Any] | None, fields: Sequence[Sequence[str]], most: int
) -> tuple[list[str], int]:
    """The URLs at these fields of an event, each once, and how many values, at most `most`, that took."""
    found: dict[str, None] = {}
    left: list[tuple[Any, Sequence[str]]] = (
        [(metadata, field) for field in reversed(fields)] if metadata else []
    )
    looked_at = 0
    while left and looked_at < most and len(found) < _EVENT_URLS:
        looked_at += 1
        value, path = left.pop()
        if isinstance(value, list):
            left += [(each, path) for each in reversed(value[:most])]
        elif path:
            if isinstance(value, Mapping) and path[0] in value:
                left.append((value[path[0]], path[1:]))
        elif _is_url(value):
            found[value] = None
    return list(found), looked_at


def _is_url(value: object) -> bool:
    is_short = isinstance(value, str) and len(value) <= _URL_CHARACTERS
    return is_short and str(value).startswith(("http://", "https://"))
