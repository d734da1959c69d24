"""Spans of an owner's sampled publishes: from their arrival until they are durable, or refused."""

from collections.abc import Sequence

import msgspec

from broker.errors import BrokerError
from broker.owners.commands import Command, CommandReply, TracedPublish
from broker.tracing.tracer import Span, Tracer


class TracedCommands:
    """The commands of one call. `end` it with their replies.

    Attributes:
        commands: as they came, but that a traced publish goes on below the owner's own span.
    """

    def __init__(self, commands: Sequence[Command], tracer: Tracer, slot: str) -> None:
        """Begin a span for each publish that is traced."""
        self._spans: list[tuple[int, Span]] = []
        self.commands = list(commands)
        for place, command in enumerate(commands):
            if isinstance(command, TracedPublish) and command.trace is not None:
                attributes: dict[str, str | int | float] = {
                    "broker.slot": slot,
                    "broker.program": command.program_id,
                    "broker.events": len(command.events),
                }
                span = tracer.begin("publish", command.trace, attributes)
                self._spans.append((place, span))
                self.commands[place] = msgspec.structs.replace(command, trace=span.context)

    def end(self, replies: Sequence[CommandReply]) -> None:
        """End the spans; one of a publish that failed says with which error."""
        for place, span in self._spans:
            reply = replies[place]
            span.end({"error.type": reply.name} if isinstance(reply, BrokerError) else None)
