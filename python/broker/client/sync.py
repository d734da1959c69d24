"""The synchronous client: the same calls, run on an event loop in a thread of its own.

There is one implementation; what stands here only carries a call to that loop and waits for its end.
"""

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from broker.client.aio import AsyncClient, ClientOptions
from broker.client.analytics import Analytics
from broker.client.audit import Audit
from broker.client.channels import Channels
from broker.client.connector import Gateways
from broker.client.cursor import Cursor
from broker.client.data_sources import DataSources
from broker.client.events import Events
from broker.client.images import Images
from broker.client.models import Change, Event
from broker.client.programs import Programs
from broker.client.projects import Projects
from broker.client.responses import Responses
from broker.client.revisions import Revisions
from broker.client.statistics import Statistics
from broker.client.status import Status
from broker.client.storage import Storage
from broker.client.tokens import ApiTokens, Tokens
from broker.client.users import Users

P = ParamSpec("P")
R = TypeVar("R")
GroupT = TypeVar("GroupT")
CallT = TypeVar("CallT", bound=Callable[..., Any])

_END = object()


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` to its end and return its result; an interrupted wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the loop has ended."""
        return self._loop.is_closed()

    def close(self) -> None:
        """End the loop with all that still runs on it."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _named(run: CallT, method: Callable[..., Any]) -> CallT:
    update_wrapper(run, method)
    return run


def _call(
    method: Callable[Concatenate[GroupT, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[_SyncGroup[GroupT], P], R]":
    def run(self: "_SyncGroup[GroupT]", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._group, *args, **kwargs))

    return _named(run, method)


def _iterator(
    method: Callable[Concatenate[GroupT, P], AsyncIterable[R]],
) -> "Callable[Concatenate[_SyncGroup[GroupT], P], Generator[R]]":
    def run(self: "_SyncGroup[GroupT]", /, *args: P.args, **kwargs: P.kwargs) -> Generator[R]:
        return _drain(self._loop, method(self._group, *args, **kwargs))

    return _named(run, method)


def _drain(loop: _Loop, items: AsyncIterable[R]) -> Generator[R]:
    """Step an asynchronous iterator from here; leaving the loop early closes it."""
    iterator = aiter(items)

    async def step() -> Any:
        return await anext(iterator, _END)

    async def close() -> None:
        closing = getattr(iterator, "aclose", None)
        if closing is not None:
            await closing()

    try:
        while (item := loop.run(step())) is not _END:
            yield item
    finally:
        loop.run(close())


class _SyncGroup(Generic[GroupT]):
    """The calls on one kind of resource."""

    def __init__(self, loop: _Loop, group: GroupT) -> None:
        self._loop = loop
        self._group = group


class _SyncPrograms(_SyncGroup[Programs]):
    """As `Programs`, without `async`."""

    create = _call(Programs.create)
    get = _call(Programs.get)
    update = _call(Programs.update)
    delete = _call(Programs.delete)
    list = _call(Programs.list)
    filter = _call(Programs.filter)
    get_last_update = _call(Programs.get_last_update)


class _SyncEvents(_SyncGroup[Events]):
    """As `Events`, without `async`."""

    publish = _call(Events.publish)
    publish_batch = _call(Events.publish_batch)
    list = _call(Events.list)
    missed = _call(Events.missed)
    filter = _call(Events.filter)
    get = _call(Events.get)
    update = _call(Events.update)
    delete = _call(Events.delete)
    delete_all = _call(Events.delete_all)
    import_all = _call(Events.import_all)
    iterate = _iterator(Events.iterate)
    export_all = _iterator(Events.export_all)
    timeline = _iterator(Events.timeline)

    @overload
    def subscribe(
        self,
        program_id: str,
        since: Cursor | None = None,
        history: int = 0,
        *,
        changes: Literal[False] = False,
    ) -> Generator[Event]: ...

    @overload
    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool
    ) -> Generator[Change]: ...

    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool = False
    ) -> Generator[Event] | Generator[Change]:
        """Follow a program; as `Events.subscribe`. Each step waits for the next item."""
        subscription = self._group.subscribe(program_id, since, history, changes=changes)
        return _drain(self._loop, subscription)


class _SyncProjects(_SyncGroup[Projects]):
    """As `Projects`, without `async`."""

    list = _call(Projects.list)
    get = _call(Projects.get)
    create = _call(Projects.create)
    update = _call(Projects.update)
    delete = _call(Projects.delete)
    list_users = _call(Projects.list_users)
    list_programs = _call(Projects.list_programs)


class _SyncUsers(_SyncGroup[Users]):
    """As `Users`, without `async`."""

    get_me = _call(Users.get_me)
    list = _call(Users.list)
    get = _call(Users.get)
    create = _call(Users.create)
    update = _call(Users.update)
    delete = _call(Users.delete)
    list_roles = _call(Users.list_roles)


class _SyncRevisions(_SyncGroup[Revisions]):
    """As `Revisions`, without `async`."""

    get_published = _call(Revisions.get_published)
    get_latest = _call(Revisions.get_latest)
    get_by_status = _call(Revisions.get_by_status)
    get_by_version = _call(Revisions.get_by_version)
    get_live = _call(Revisions.get_live)
    get = _call(Revisions.get)
    create = _call(Revisions.create)
    update = _call(Revisions.update)
    patch = _call(Revisions.patch)
    list = _call(Revisions.list)


class _SyncStorage(_SyncGroup[Storage]):
    """As `Storage`, without `async`."""

    get = _call(Storage.get)
    store = _call(Storage.store)
    delete = _call(Storage.delete)


class _SyncResponses(_SyncGroup[Responses]):
    """As `Responses`, without `async`."""

    add = _call(Responses.add)
    get_results = _call(Responses.get_results)
    get_report = _call(Responses.get_report)
    get_integrity = _call(Responses.get_integrity)
    get_visitor = _call(Responses.get_visitor)
    follow = _iterator(Responses.follow)


class _SyncDataSources(_SyncGroup[DataSources]):
    """As `DataSources`, without `async`."""

    request = _call(DataSources.request)


class _SyncStatistics(_SyncGroup[Statistics]):
    """As `Statistics`, without `async`."""

    get_dashboard = _call(Statistics.get_dashboard)
    get_series = _call(Statistics.get_series)
    get_images = _call(Statistics.get_images)
    list_live_programs = _call(Statistics.list_live_programs)


class _SyncAnalytics(_SyncGroup[Analytics]):
    """As `Analytics`, without `async`."""

    get_site = _call(Analytics.get_site)
    create_site = _call(Analytics.create_site)
    complete_site = _call(Analytics.complete_site)
    get_report = _call(Analytics.get_report)
    get_snippet = _call(Analytics.get_snippet)


class _SyncAudit(_SyncGroup[Audit]):
    """As `Audit`, without `async`."""

    filter = _call(Audit.filter)


class _SyncImages(_SyncGroup[Images]):
    """As `Images`, without `async`."""

    fetch = _call(Images.fetch)
    describe = _call(Images.describe)
    purge = _call(Images.purge)
    purge_all = _call(Images.purge_all)
    warm = _call(Images.warm)

    def build_url(
        self, source: str, options: str = "-", *, signing_key: str | None = None, expires: int | None = None
    ) -> str:
        """The URL of an image; as `Images.build_url`."""
        return self._group.build_url(source, options, signing_key=signing_key, expires=expires)


class _SyncTokens(_SyncGroup[Tokens]):
    """As `Tokens`, without `async`."""

    create = _call(Tokens.create)


class _SyncApiTokens(_SyncGroup[ApiTokens]):
    """As `ApiTokens`, without `async`."""

    create = _call(ApiTokens.create)
    list = _call(ApiTokens.list)
    delete = _call(ApiTokens.delete)


class _SyncStatus(_SyncGroup[Status]):
    """As `Status`, without `async`."""

    get_version = _call(Status.get_version)
    get_health = _call(Status.get_health)
    get_server_time = _call(Status.get_server_time)
    ping = _call(Status.ping)


class _SyncGateways(_SyncGroup[Gateways]):
    """As `Gateways`, without `async`."""

    get = _call(Gateways.get)


class _SyncChannels(_SyncGroup[Channels]):
    """As `Channels`, without `async`."""

    follow = _iterator(Channels.follow)


class Client:
    """A caller of one account's broker, as `AsyncClient`. Safe to use from several threads."""

    def __init__(self, base_url: str, **options: Unpack[ClientOptions]) -> None:
        """As `AsyncClient`. Raises ValueError."""
        self._client = client = AsyncClient(base_url, **options)
        self._loop = _Loop()
        self.programs = _SyncPrograms(self._loop, client.programs)
        self.events = _SyncEvents(self._loop, client.events)
        self.channels = _SyncChannels(self._loop, client.channels)
        self.responses = _SyncResponses(self._loop, client.responses)
        self.projects = _SyncProjects(self._loop, client.projects)
        self.users = _SyncUsers(self._loop, client.users)
        self.revisions = _SyncRevisions(self._loop, client.revisions)
        self.data_sources = _SyncDataSources(self._loop, client.data_sources)
        self.storage = _SyncStorage(self._loop, client.storage)
        self.images = _SyncImages(self._loop, client.images)
        self.statistics = _SyncStatistics(self._loop, client.statistics)
        self.analytics = _SyncAnalytics(self._loop, client.analytics)
        self.audit = _SyncAudit(self._loop, client.audit)
        self.tokens = _SyncTokens(self._loop, client.tokens)
        self.api_tokens = _SyncApiTokens(self._loop, client.api_tokens)
        self.status = _SyncStatus(self._loop, client.status)
        self.gateways = _SyncGateways(self._loop, client.gateways)
        self.publish = self.events.publish
        self.subscribe = self.events.subscribe

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        if not self._loop.is_closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
