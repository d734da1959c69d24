"""The client without `async`: the same calls, run on an event loop in a thread of its own.

There is one implementation; what stands here only carries a call to that loop and waits for its end.
"""

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload

from broker.client.aio import AsyncClient
from broker.client.analytics import Analytics
from broker.client.audit import AuditLog
from broker.client.images import Images
from broker.client.models import Change, Cursor, Event
from broker.client.projects import Projects
from broker.client.revisions import Revisions
from broker.client.statistics import Statistics
from broker.client.storage import Storage
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
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Client, P], R]":
    def run(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._client, *args, **kwargs))

    return _named(run, method)


def _iterator(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[R]],
) -> "Callable[Concatenate[Client, P], Iterator[R]]":
    def run(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _drain(self._loop, method(self._client, *args, **kwargs))

    return _named(run, method)


def _group_call(
    method: Callable[Concatenate[GroupT, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[_Group[GroupT], P], R]":
    def run(self: "_Group[GroupT]", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._group, *args, **kwargs))

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


class _Group(Generic[GroupT]):
    """The calls on one kind of resource."""

    def __init__(self, loop: _Loop, group: GroupT) -> None:
        self._loop = loop
        self._group = group


class _SyncUsers(_Group[Users]):
    """The calls on users; see `broker.client.users.Users`."""

    me = _group_call(Users.me)
    list = _group_call(Users.list)
    get = _group_call(Users.get)
    create = _group_call(Users.create)
    update = _group_call(Users.update)
    delete = _group_call(Users.delete)
    roles = _group_call(Users.roles)
    create_api_token = _group_call(Users.create_api_token)
    api_tokens = _group_call(Users.api_tokens)
    delete_api_token = _group_call(Users.delete_api_token)


class _SyncProjects(_Group[Projects]):
    """The calls on projects; see `broker.client.projects.Projects`."""

    list = _group_call(Projects.list)
    get = _group_call(Projects.get)
    create = _group_call(Projects.create)
    update = _group_call(Projects.update)
    delete = _group_call(Projects.delete)
    users = _group_call(Projects.users)
    programs = _group_call(Projects.programs)
    request = _group_call(Projects.request)


class _SyncRevisions(_Group[Revisions]):
    """The calls on application revisions; see `broker.client.revisions.Revisions`."""

    published = _group_call(Revisions.published)
    latest = _group_call(Revisions.latest)
    by_status = _group_call(Revisions.by_status)
    by_version = _group_call(Revisions.by_version)
    live = _group_call(Revisions.live)
    get = _group_call(Revisions.get)
    create = _group_call(Revisions.create)
    update = _group_call(Revisions.update)
    patch = _group_call(Revisions.patch)
    list = _group_call(Revisions.list)


class _SyncStorage(_Group[Storage]):
    """The calls on stored values; see `broker.client.storage.Storage`."""

    get = _group_call(Storage.get)
    store = _group_call(Storage.store)
    delete = _group_call(Storage.delete)


class _SyncStatistics(_Group[Statistics]):
    """The calls on statistics; see `broker.client.statistics.Statistics`."""

    dashboard = _group_call(Statistics.dashboard)
    series = _group_call(Statistics.series)
    images = _group_call(Statistics.images)
    live_programs = _group_call(Statistics.live_programs)


class _SyncAuditLog(_Group[AuditLog]):
    """The calls on the audit log; see `broker.client.audit.AuditLog`."""

    filter = _group_call(AuditLog.filter)


class _SyncAnalytics(_Group[Analytics]):
    """The calls on analytics sites; see `broker.client.analytics.Analytics`."""

    site = _group_call(Analytics.site)
    create_site = _group_call(Analytics.create_site)
    complete_site = _group_call(Analytics.complete_site)
    report = _group_call(Analytics.report)
    snippet = _group_call(Analytics.snippet)


class _SyncImages(_Group[Images]):
    """Pictures; see `broker.client.images.Images`."""

    fetch = _group_call(Images.fetch)
    describe = _group_call(Images.describe)
    purge = _group_call(Images.purge)
    purge_all = _group_call(Images.purge_all)
    warm = _group_call(Images.warm)

    def url(
        self, source: str, options: str = "-", *, signing_key: str | None = None, expires: int | None = None
    ) -> str:
        """The URL of a picture; see `Images.url`."""
        return self._group.url(source, options, signing_key=signing_key, expires=expires)


class Client:
    """A caller of one account's broker, as `AsyncClient`. Safe to use from several threads."""

    def __init__(self, base_url: str, **options: Any) -> None:
        """See `AsyncClient`. Raises ValueError, TypeError."""
        self._client = AsyncClient(base_url, **options)
        self._loop = _Loop()
        self.users = _SyncUsers(self._loop, self._client.users)
        self.projects = _SyncProjects(self._loop, self._client.projects)
        self.revisions = _SyncRevisions(self._loop, self._client.revisions)
        self.storage = _SyncStorage(self._loop, self._client.storage)
        self.statistics = _SyncStatistics(self._loop, self._client.statistics)
        self.audit = _SyncAuditLog(self._loop, self._client.audit)
        self.analytics = _SyncAnalytics(self._loop, self._client.analytics)
        self.images = _SyncImages(self._loop, self._client.images)

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        if not self._loop.is_closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    login = _call(AsyncClient.login)
    ping = _call(AsyncClient.ping)
    server_time = _call(AsyncClient.server_time)
    version = _call(AsyncClient.version)
    connect = _call(AsyncClient.connect)

    create_program = _call(AsyncClient.create_program)
    get_program = _call(AsyncClient.get_program)
    update_program = _call(AsyncClient.update_program)
    delete_program = _call(AsyncClient.delete_program)
    list_programs = _call(AsyncClient.list_programs)
    filter_programs = _call(AsyncClient.filter_programs)
    last_update = _call(AsyncClient.last_update)

    publish = _call(AsyncClient.publish)
    publish_batch = _call(AsyncClient.publish_batch)
    events = _call(AsyncClient.events)
    iterate_events = _iterator(AsyncClient.iterate_events)
    filter_events = _call(AsyncClient.filter_events)
    get_event = _call(AsyncClient.get_event)
    update_event = _call(AsyncClient.update_event)
    delete_event = _call(AsyncClient.delete_event)
    delete_events = _call(AsyncClient.delete_events)
    import_events = _call(AsyncClient.import_events)
    export_events = _iterator(AsyncClient.export_events)
    follow = _iterator(AsyncClient.follow)

    add_responses = _call(AsyncClient.add_responses)
    response_results = _call(AsyncClient.response_results)
    response_report = _call(AsyncClient.response_report)
    follow_responses = _iterator(AsyncClient.follow_responses)

    @overload
    def subscribe(
        self,
        program_id: str,
        since: Cursor | None = None,
        history: int = 0,
        *,
        changes: Literal[False] = False,
    ) -> Iterator[Event]: ...

    @overload
    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool
    ) -> Iterator[Change]: ...

    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool = False
    ) -> Iterator[Event] | Iterator[Change]:
        """Follow a program; see `AsyncClient.subscribe`. Each step waits for the next item."""
        subscription = self._client.subscribe(program_id, since, history, changes=changes)
        return _drain(self._loop, subscription)

    def timeline(self, program_id: str, **options: Any) -> Generator[Event]:
        """Follow a program in time with a picture; see `AsyncClient.timeline`.

        `position` and `seeked` are called on the client's own thread.
        """
        return _drain(self._loop, self._client.timeline(program_id, **options))
