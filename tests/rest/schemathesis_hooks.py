"""Rules that no schema can say: data that should be accepted is made to keep them.

Loaded by Schemathesis (`schemathesis.toml`), not by pytest.
"""

from collections.abc import MutableMapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

import schemathesis
from schemathesis.core import NOT_SET

MAX_INTEGER = 2**53
RANGES = (("from", "to"), ("scheduledStartTime", "scheduledEndTime"))
NEW = ("id", "username", "version", "Idempotency-Key")
_numbers = count(1)
_sent: set[tuple[str, str]] = set()


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Leave out what counts as wrong and is not."""
    if case.meta is None or not case.meta.generation.mode.is_negative:
        return True
    # `filter` in the place of an id is the path of another operation.
    return "filter" not in (case.path_parameters or {}).values()


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Keep the rules, unless the case is there to be refused."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    path = case.operation.path
    for fields in (case.query, case.body):
        if isinstance(fields, dict):
            _order(fields)
    if path == "/statistics/filtered":
        case.query.pop("from", None)  # a range has a limited number of points
    if path == "/programs/{programId}/events" and case.query:
        case.query.pop("cursor", None)  # nobody but the server makes one
    if case.body is not NOT_SET:  # which would count as changed, and as wrong
        case.body = _exact(case.body)
    if case.method == "POST" and path != "/token":
        _renew(case.headers)
    if isinstance(case.body, dict):
        if case.method == "POST" and path != "/token":
            _renew(case.body)
        _keep_printable(case.body)
        if path == "/users/me/tokens" and case.body.get("expires"):
            case.body["expires"] = "2096-07-19T18:00:00Z"  # in the future
    return case


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Say again in the body what the path says, which a link may have changed after `map_case`."""
    path = case.operation.path
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(case.body, dict):
        return
    if "id" in case.body and path.endswith("}"):
        case.body["id"] = case.path_parameters[path.rpartition("{")[2].rstrip("}")]
    if path == "/users/me":
        case.body.pop("id", None)  # any but the caller's own is refused
    if path.endswith("/import") and "programId" in case.body:
        case.body["programId"] = case.path_parameters["programId"]


def _order(fields: dict[str, Any]) -> None:
    """An end does not come before its beginning."""
    for start, end in RANGES:
        first, last = fields.get(start), fields.get(end)
        if first is not None and last is not None and _moment(first) > _moment(last):
            fields[start], fields[end] = last, first


def _renew(fields: MutableMapping[str, Any]) -> None:
    """What names something new is sent once; again it would be 409, whatever else the request says."""
    for name in NEW:
        value = fields.get(name)
        if isinstance(value, str):
            if (name, value) in _sent:
                fields[name] = value = f"new-{next(_numbers)}"
            _sent.add((name, value))


def _keep_printable(fields: dict[str, Any]) -> None:
    """Names are printable as Unicode says, for which no pattern is short enough."""
    for name in ("username", "name"):
        if isinstance(fields.get(name), str) and not fields[name].isprintable():
            fields[name] = "printable"


def _exact(value: Any) -> Any:
    """Integers are written without a fraction, and free-form ones are exact in every reader."""
    if isinstance(value, dict):
        return {name: _exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_exact(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INTEGER:
        return int(value)
    is_large = isinstance(value, int) and abs(value) > MAX_INTEGER
    return 0 if is_large else value


def _moment(value: Any) -> Any:
    """A time or an integer, which may be text already."""
    try:
        return int(value)
    except ValueError:
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
