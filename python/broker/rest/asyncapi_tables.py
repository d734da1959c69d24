"""Tables for which AsyncAPI has no field: refused requests and close codes."""

from collections.abc import Iterable
from typing import Any

from broker.resources.notifications import Close, Refusal


def refusal_rows(refusals: Iterable[Refusal]) -> list[dict[str, Any]]:
    """What a request may be answered in place of what it asks for."""
    return [
        {
            "status": refusal.status,
            "error": refusal.error,
            "description": refusal.meaning,
            "headers": list(refusal.headers),
        }
        for refusal in refusals
    ]


def close_rows(closes: Iterable[Close]) -> list[dict[str, Any]]:
    """The codes with which a gateway ends a connection; `reasons` are those of event streams."""
    return [
        {
            "code": close.code,
            "name": close.figure,
            "description": close.meaning,
            "reconnect": close.comes_back,
        }
        for close in closes
    ]
