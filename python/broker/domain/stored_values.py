"""Stored values: JSON that the clients of a project share."""

import orjson

from broker.domain.values import FreeObject, Id, Model, Time


class StoredValue(Model):
    """A value as it is answered. `createdTime` is when it was stored, also in place of another."""

    id: Id
    metadata: FreeObject
    created_time: Time


def stored_value_json(value_id: str, metadata: bytes, created_time: str) -> bytes:
    """The JSON of a `StoredValue`; `metadata` is compact JSON and is not parsed, the time is ISO 8601."""
    return orjson.dumps({"id": value_id, "metadata": orjson.Fragment(metadata), "createdTime": created_time})
