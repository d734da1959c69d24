"""Params and results of `subscribe` and `unsubscribe`, which exist over WebSocket only."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from broker.domain.events import Event
from broker.domain.values import MAX_INTEGER, Id, Model, bounded
from broker.errors import InvalidRequest
from broker.operations.invoke import validate

PROJECT_CHANNEL = "project:"

_ChannelName = Annotated[str, Field(min_length=1, max_length=256)]


_Params = TypeVar("_Params", bound="TargetParams")


class Since(Model):
    """A viewer's position: it has everything up to and including `seq` of `epoch`.

    `id` is that of the message it has seen at `seq`.
    """

    epoch: str = Field(min_length=1, max_length=64)
    seq: int = Field(ge=0, le=MAX_INTEGER)
    id: str | None = Field(default=None, min_length=1, max_length=64)


def _object(value: object) -> object:
    # Event streams take the form `epoch:seq`, so it is tried here too.
    if value is not None and not isinstance(value, dict | Since):
        raise ValueError("must be an object with epoch and seq")
    return value


class TargetParams(Model):
    """Exactly one of a program and a channel; `unsubscribe` takes nothing else."""

    program_id: Id | None = None
    channel: _ChannelName | None = None


class SubscribeParams(TargetParams):
    """A target, and for a program how far to reach back: after a position, or the last `history` pushes."""

    since: Annotated[Annotated[Since, bounded(Since)] | None, BeforeValidator(_object)] = None
    history: int | None = Field(default=None, ge=0, le=MAX_INTEGER)


class UpdatedItem(Event):
    """A change of an event among what `subscribe` answers; `seq` is the place of the change."""

    method: Literal["eventUpdated"]


class DeletedItem(Model):
    """A deletion of an event among what `subscribe` answers."""

    method: Literal["eventDeleted"]
    seq: int
    epoch: str
    program_id: str
    id: str


class Subscribed(Model):
    """Where the subscription stands: what comes next has `seq + 1` of `epoch`.

    `id` is that of the message at `seq`, where the gateway has it. `recovered` is false when what lies
    between `since` and here are lost. `events` are the missed events, oldest first.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    program_id: str
    epoch: str
    seq: int
    id: str | None = None
    recovered: bool
    events: list[Event | UpdatedItem | DeletedItem]


class ChannelSubscribed(Model):
    """A channel is followed from here on; it has no position."""

    channel: str


class Unsubscribed(Model):
    """What is not followed any more, as it was named."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    program_id: str | None = None
    channel: str | None = None


def parse_subscribe(params: dict[str, Any]) -> SubscribeParams:
    """The params of `subscribe`.

    A `history` beyond the history limit asks for all there is: native code, which decides most of them,
    knows no other end than that of its log.

    Raises:
        InvalidRequest: with one fault for every field that is wrong.
    """
    parsed = _parse(SubscribeParams, params)
    for name in ("since", "history"):
        if parsed.channel is not None and getattr(parsed, name) is not None:
            raise InvalidRequest.of_field(name, "is allowed with programId only; a channel has no history")
    if parsed.since is not None and parsed.history is not None:
        raise InvalidRequest.of_field("history", "must not be combined with since")
    return parsed


def parse_unsubscribe(params: dict[str, Any]) -> TargetParams:
    """The params of `unsubscribe`. Raises InvalidRequest as `parse_subscribe` does."""
    return _parse(TargetParams, params)


def _parse(model: type[_Params], params: dict[str, Any]) -> _Params:
    parsed = validate(model, params)
    if (parsed.program_id is None) == (parsed.channel is None):
        raise InvalidRequest.of_field("programId", "exactly one of programId and channel is required")
    return parsed
