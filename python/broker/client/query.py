"""Turns arguments into paths, queries and bodies: pure, shared by all calls."""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import quote


class Unset(Enum):
    """The absence of an argument where None means something."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""Leaves a field as it is, where None would clear it."""

TimeLike = datetime | date | str
"""A datetime (one without a zone is UTC), a date, or ISO 8601 text."""


def path(*parts: str) -> str:
    """The parts as one path, each quoted whole. Raises ValueError for an empty one or one of dots."""
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{part!r} cannot be an id")
    return "/" + "/".join(quote(part, safe="~:") for part in parts)


def time_text(value: TimeLike | None) -> str | None:
    """ISO 8601 in UTC; text is passed on for the broker to judge."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, datetime):
        return value.isoformat()
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """A body's fields without those that are unset; times as text."""
    return {
        name: time_text(value) if isinstance(value, date) else value
        for name, value in values.items()
        if not isinstance(value, Unset)
    }


def match(etag: str | None) -> dict[str, str]:
    """The headers of a change that depends on an entity tag (RFC 9110, section 13.1.1)."""
    return {} if etag is None else {"If-Match": etag}


def filters(
    *,
    search: str | None,
    ids: Iterable[str] | None,
    status: str | None,
    sort: str | None,
    order: str | None,
    limit: int | None,
    skip: int | None,
) -> dict[str, Any]:
    """The query parameters that every filtered list takes."""
    return {
        "search": search,
        "ids": None if ids is None else ",".join(ids),
        "status": status,
        "sort": sort,
        "order": order,
        "limit": limit,
        "skip": skip,
    }
