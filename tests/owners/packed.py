"""A call of an owner in this process, as it would travel over a link."""

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.owners.calls import OWNER_CALLS
from broker.owners.owner import Owner


async def call_packed(owner: Owner, method: str, arguments: Sequence[object]) -> Any:
    """Pack the call, read it as the owner's process does, and the reply likewise."""
    _, _, body = OWNER_CALLS.unpack_call(OWNER_CALLS.pack_call(1, method, tuple(arguments)))
    reply = getattr(owner, method)(*OWNER_CALLS.read_arguments(method, body))
    if asyncio.iscoroutine(reply):
        reply = await reply
    _, kind, result = OWNER_CALLS.unpack_reply(OWNER_CALLS.pack_result(1, reply))
    return OWNER_CALLS.read_reply(method, kind, result)
