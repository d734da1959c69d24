"""`subscribe` and `unsubscribe` where native code cannot decide: checks rights and prepares the log.

A subscriber is attached by native code only. What happens here comes before: the params are checked with
clear faults, the caller's right is decided, the topic is followed, older pushes are brought, the reader class
is let in. Then native code decides again. From the second viewer on, none of this runs.

The right is decided from what the topic's owner said of it last; the database is asked only for programs that
nobody follows yet. So a program that is followed takes new viewers while the database is unavailable.

Who may read a program may follow its live results, the channel `responses:<id>`; that is decided as for the
program itself.

Of the channel `programs` admins, producers and users are told what they may know; where that is not all, they
follow a view of it. A channel `project:<id>` is for those who belong to the project.
"""

from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.permission_table import SUBSCRIPTIONS
from broker.domain.programs import Access, Program
from broker.domain.users import Principal
from broker.domain.values import Id
from broker.errors import NotFound, Unauthenticated
from broker.gateway.backfill import Backfill
from broker.gateway.program_views import ProgramViews, sees_everything, view_topic
from broker.gateway.projects import ProjectChannels
from broker.gateway.sessions import Session, Sessions
from broker.gateway.topics import Followed, FollowedTopics, Logs
from broker.gateway.upcalls import AccessChange as AccessUpcall
from broker.gateway.upcalls import Idle, OperationCall
from broker.operations.services import Services
from broker.owners.protocol import (
    PROGRAMS_CHANNEL,
    RESPONSES_CHANNEL,
    STORAGE_CHANNEL,
    Attributes,
    channel_topic,
    program_topic,
)
from broker.resources.following import (
    PROJECT_CHANNEL,
    SubscribeParams,
    parse_subscribe,
    parse_unsubscribe,
)

_NO_TIME = to_datetime(0)
_ID: TypeAdapter[str] = TypeAdapter(Id)


class Subscriptions:
    """Prepares subscriptions for one gateway."""

    def __init__(
        self,
        logs: Logs,
        topics: FollowedTopics,
        projects: ProjectChannels,
        views: ProgramViews,
        backfill: Backfill,
        sessions: Sessions,
        services: Services,
    ) -> None:
        self._logs = logs
        self._topics = topics
        self._projects = projects
        self._views = views
        self._backfill = backfill
        self._sessions = sessions
        self._services = services

    async def subscribe(self, call: OperationCall, session: Session | None, params: dict[str, Any]) -> None:
        """Make what `params` names ready for the caller, so that native code can attach it.

        Raises:
            InvalidRequest: the params are wrong.
            Unauthenticated: no token, and the program is private or unknown, or the channel needs one.
            InsufficientScope: the token's role is too low, or the private program is another project's.
            NotFound: no such program or channel.
            Unavailable: the database or the owner cannot be reached in time.
        """
        wanted = parse_subscribe(params)
        principal = session.principal if session else Principal(call.account)
        if wanted.channel is not None:
            topic = await self._open_channel(principal, session, wanted.channel)
        else:
            topic = await self._open_program(principal, wanted)
        if session is not None:
            self._let_in(topic, session)

    async def unsubscribe(
        self, _call: OperationCall, _session: Session | None, params: dict[str, Any]
    ) -> bytes:
        """Answer an `unsubscribe` that native code found nothing for: a fault, or nothing to do.

        Raises:
            InvalidRequest: the params are wrong.
        """
        target = parse_unsubscribe(params)
        return orjson.dumps(target.model_dump(by_alias=True, exclude_none=True))

    def decide_again(self, upcall: AccessUpcall) -> None:
        """Classes of readers follow a private log undecided: let those stay that may, and end the others."""
        followed = self._topics.find(upcall.topic)
        for reader in upcall.readers:
            caller = self._sessions.reader(reader)
            is_allowed = caller is not None and _may_follow(caller, reader, upcall.topic, followed)
            if is_allowed and followed is not None:
                followed.readers.add(reader)
            self._logs.allow(upcall.topic, reader, is_allowed)

    def attributes_changed(self, followed: Followed, before: Attributes, now: Attributes) -> None:
        """A private program moved to another project: the readers of the earlier one may lose it."""
        if now.public or before.project_id == now.project_id or _program_of(followed.topic) is None:
            return
        for reader in list(followed.readers):
            caller = self._sessions.reader(reader)
            if caller is None or not _may_read(caller, followed):
                followed.readers.discard(reader)
                self._logs.allow(followed.topic, reader, False)

    def close_if_idle(self, upcall: Idle) -> None:
        """Let a topic go that has had no subscriber for a while."""
        _, kind, name = upcall.topic.split("/", 2)
        if self._views.is_view(upcall.topic):
            self._views.close_if_idle(upcall.topic)
        elif kind == "channel" and name.startswith(PROJECT_CHANNEL):
            self._projects.close_if_idle(upcall.topic)
        elif self._topics.close_if_idle(upcall.topic):
            self._backfill.forget(upcall.topic)

    async def _open_program(self, principal: Principal, wanted: SubscribeParams) -> str:
        assert wanted.program_id is not None, "params name a program or a channel"
        topic = program_topic(principal.account, wanted.program_id)
        await self._open_readable(principal, topic, wanted.program_id)
        if wanted.since is not None:
            await self._backfill.since(
                topic, wanted.since.epoch, wanted.since.seq, is_compared=wanted.since.id is not None
            )
        elif wanted.history:
            await self._backfill.last(topic, wanted.history)
        return topic

    async def _open_readable(self, principal: Principal, topic: str, program_id: str) -> None:
        """Follow a topic that is for those who may read the program."""
        try:
            followed = self._topics.find(topic)
            if followed is None:
                program = await self._services.programs.recall(principal.account, program_id)
                _require_read(principal, program, program_id)
                followed = await self._topics.open(topic)
        except NotFound:
            if principal.is_anonymous:
                # As for a private one: without a token nobody learns which programs there are.
                raise Unauthenticated(
                    permissions.required_token(permissions.not_public(program_id))
                ) from None
            raise
        _require_read(principal, _stand_in(followed), program_id)

    async def _open_channel(self, principal: Principal, session: Session | None, channel: str) -> str:
        topic = channel_topic(principal.account, channel)
        program_id = _id_of(channel, RESPONSES_CHANNEL)
        if program_id is not None:
            await self._open_readable(principal, topic, program_id)
            return topic
        if _id_of(channel, STORAGE_CHANNEL) is not None:
            # Open to everybody, as reading a value is; the owner knows whether there is such a project.
            try:
                await self._topics.open(topic)
            except NotFound:
                raise NotFound(f"there is no channel {channel}") from None
            return topic
        project_id = _id_of(channel, PROJECT_CHANNEL)
        if channel != PROGRAMS_CHANNEL and project_id is None:
            raise NotFound(f"there is no channel {channel}")
        if project_id is not None:
            _require_project(principal, project_id, f"there is no channel {channel}")
            await self._projects.open(principal.account, project_id)
            return topic
        permissions.require_audience(SUBSCRIPTIONS[PROGRAMS_CHANNEL], principal)
        if sees_everything(principal):
            await self._topics.open(topic)
            return topic
        assert session is not None, "the rule lets no caller without a token in"
        return await self._views.open(principal, session.reader)

    def _let_in(self, topic: str, session: Session) -> None:
        """Remember that the caller's class of readers may follow; nothing to remember of a public topic."""
        followed = self._topics.find(topic)
        if followed is not None and followed.attributes is not None and _program_of(topic) is not None:
            # Decided once more: the program may have changed while its history was fetched.
            program = _stand_in(followed)
            _require_read(session.principal, program, program.id)
            if followed.attributes.public:
                return
        if followed is not None:
            followed.readers.add(session.reader)
        self._logs.allow(topic, session.reader, True)


def _id_of(channel: str, kind: str) -> str | None:
    """The id of the project or program whose channel of this kind has this name."""
    if not channel.startswith(kind):
        return None
    try:
        return _ID.validate_python(channel.removeprefix(kind))
    except ValidationError:
        return None


def _may_follow(principal: Principal, reader: int, topic: str, followed: Followed | None) -> bool:
    if _program_of(topic) is not None:
        return followed is not None and _may_read(principal, followed)
    channel = topic.split("/", 2)[2]
    if channel.startswith(STORAGE_CHANNEL):
        return True
    project_id = _id_of(channel, PROJECT_CHANNEL)
    if project_id is None:
        return sees_everything(principal) or topic == view_topic(principal.account, reader)
    target = permissions.belonging(principal, project_id)
    return SUBSCRIPTIONS[PROJECT_CHANNEL].allows(principal.role, target)


def _require_project(principal: Principal, project_id: str, missing: str) -> None:
    target = permissions.belonging(principal, project_id)
    permissions.require(SUBSCRIPTIONS[PROJECT_CHANNEL], principal, target, missing)


def _require_read(principal: Principal, program: Program | None, program_id: str) -> None:
    permissions.require_program(SUBSCRIPTIONS["program"], principal, program, program_id)


def _may_read(principal: Principal, followed: Followed) -> bool:
    target = permissions.program_target(principal, _stand_in(followed))
    return SUBSCRIPTIONS["program"].allows(principal.role, target)


def _stand_in(followed: Followed) -> Program:
    """The followed program, as far as it matters for who may read it."""
    assert followed.attributes is not None, "the topic is open"
    return Program.model_construct(
        id=_program_of(followed.topic) or "",
        name="",
        access=Access.PUBLIC if followed.attributes.public else Access.PRIVATE,
        project_id=followed.attributes.project_id,
        created_time=_NO_TIME,
        updated_time=_NO_TIME,
    )


def _program_of(topic: str) -> str | None:
    """The program whose topic this is, or the channel of whose live results; None of any other channel."""
    _, kind, name = topic.split("/", 2)
    return name if kind == "program" else _id_of(name, RESPONSES_CHANNEL)
