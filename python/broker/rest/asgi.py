"""The types of ASGI (https://asgi.readthedocs.io), by which a server and an application exchange messages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
