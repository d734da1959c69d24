"""What `subscribe` and `unsubscribe` take."""

from typing import Annotated, Any, TypeVar

from pydantic import Field

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


class TargetParams(Model):
    """A program or a channel; `unsubscribe` takes nothing else."""

    program_id: Id | None = None
    channel: _ChannelName | None = None


class SubscribeParams(TargetParams):
    """A target, and for a program how far to reach back: after a position, or the last `history` pushes."""

    since: Annotated[Since, bounded(Since)] | None = None
    history: int | None = Field(default=None, ge=0, le=MAX_INTEGER)


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
            raise InvalidRequest.of_field(name, "goes with programId only; a channel has no history")
    if parsed.since is not None and parsed.history is not None:
        raise InvalidRequest.of_field("history", "must not come with since")
    return parsed


def parse_unsubscribe(params: dict[str, Any]) -> TargetParams:
    """The params of `unsubscribe`. Raises InvalidRequest as `parse_subscribe` does."""
    return _parse(TargetParams, params)


def _parse(model: type[_Params], params: dict[str, Any]) -> _Params:
    parsed = validate(model, params)
    if (parsed.program_id is None) == (parsed.channel is None):
        raise InvalidRequest.of_field("programId", "exactly one of programId and channel is required")
    return parsed
