"""The types by which a server and an application talk: those of ASGI, and of what needs no messages.

ASGI: https://asgi.readthedocs.io
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker.rest.headers import RawHeader

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

WholeReply = tuple[list[RawHeader], bytes]
"""The headers and the body of a reply with status 200."""

AnswerAtOnce = Callable[[bytes], WholeReply | None]
"""Answers the bytes of a whole request, without waiting; None for what the application shall answer."""
