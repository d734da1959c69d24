"""Calls as bytes: which calls a link accepts, and the types of arguments and replies.

A `Protocol` describes a slot's actor. Its annotations are the contract of the link: arguments and results are
MessagePack, decoded into the annotated types and nothing else. No value names a class to be imported.

::

    call     [number, method, [argument, …]]
    answer   [number, 0, result]         of the annotated type
             [number, 1, ErrorData]      a BrokerError, where the annotation has one
             [number, 2, null]           the call failed or does not exist; the listener's log says why

Types that MessagePack does not know travel as data under a tag: an error by its name, which is looked up
among ours (`broker.errors.error_class`), a Pydantic model as its JSON, validated again. A union of several
classes needs a tag each: such classes are `Carried`.

A field may be added at the end of a `Carried` class, or to a dataclass or a model, with a default: processes
with it and without it understand each other. Any other change of what travels needs a new `wire.VERSION`.
"""

import inspect
from functools import reduce
from operator import or_
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from broker.domain.values import Model
from broker.errors import BrokerError, FieldFault, InternalError, error_class

T = TypeVar("T")

RESULT, ERROR, FAILED = range(3)


class CallError(Exception):
    """Bytes that are no call or answer of this contract."""


class CannotTravel(Exception):
    """A value that is not of a type of its contract, or too long."""


class Carried(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The base of classes that travel in a union with others."""


class ErrorData(Carried, tag="error", frozen=True):
    """A `BrokerError`."""

    name: str
    message: str
    faults: list[tuple[str, str]]
    retry_after_s: int | None
    log_text: str | None

    @classmethod
    def of(cls, error: BrokerError) -> "ErrorData":
        """The data of an error."""
        faults = [(fault.field, fault.message) for fault in error.faults]
        return cls(error.name, error.message, faults, error.retry_after_s, error.log_text)

    def error(self) -> BrokerError:
        """The error; one that only a newer process knows is an `InternalError`."""
        return (error_class(self.name) or InternalError)(
            self.message,
            faults=[FieldFault(*fault) for fault in self.faults],
            retry_after_s=self.retry_after_s,
            log_text=self.log_text,
        )


class ModelData(Carried, tag="model", frozen=True):
    """A Pydantic model, by the name of its class."""

    name: str
    json: bytes


class _Shape(NamedTuple):
    """One method.

    `revives` are the places among the arguments, and `revives_result`, in which data stands for objects.
    """

    arguments: msgspec.msgpack.Decoder[tuple[Any, ...]]
    result: msgspec.msgpack.Decoder[Any]
    revives: tuple[int, ...]
    revives_result: bool


class Calls(Generic[T]):
    """The methods of the Protocol `T` as calls. Immutable."""

    def __init__(self, interface: object) -> None:
        """Read the annotations of `interface`, which is `T`. Raises TypeError: a type cannot travel."""
        self._models: dict[str, type[Model]] = {}
        self._shapes = {
            name: self._shape(method)
            for name, method in inspect.getmembers(interface, inspect.isfunction)
            if not name.startswith("_")
        }
        self._encode = msgspec.msgpack.Encoder(enc_hook=_to_data).encode
        self._call = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw]).decode
        self._answer = msgspec.msgpack.Decoder(tuple[int, Literal[0, 1, 2], msgspec.Raw]).decode
        self._error = msgspec.msgpack.Decoder(ErrorData).decode

    @property
    def methods(self) -> frozenset[str]:
        """The names of what may be called."""
        return frozenset(self._shapes)

    # -- the caller's side

    def pack_call(self, number: int, method: str, arguments: tuple[object, ...]) -> bytes:
        """A call as bytes. Raises CannotTravel."""
        return self._pack((number, method, arguments))

    def unpack_reply(self, payload: bytes) -> tuple[int, int, msgspec.Raw]:
        """Number, kind and what belongs to it, for `read_reply`. Raises CallError."""
        try:
            return self._answer(payload)
        except _UNREADABLE as error:
            raise CallError(f"not a reply: {error}") from None

    def read_reply(self, method: str, kind: int, body: msgspec.Raw) -> Any:
        """The result or the error of a call. Raises CallError, also for a call that failed."""
        if kind == FAILED:
            raise CallError(f"{method} failed")
        shape = self._shapes[method]
        try:
            if kind == ERROR:
                return self._error(body).error()
            result = shape.result.decode(body)
            return self._revive(result) if shape.revives_result else result
        except _UNREADABLE as error:
            raise CallError(f"not a reply of {method}: {error}") from None

    # -- the listener's side

    def unpack_call(self, payload: bytes) -> tuple[int, str, msgspec.Raw]:
        """Number, method and arguments, for `read_arguments`. Raises CallError."""
        try:
            return self._call(payload)
        except _UNREADABLE as error:
            raise CallError(f"not a call: {error}") from None

    def read_arguments(self, method: str, body: msgspec.Raw) -> tuple[object, ...]:
        """The arguments of a call. Raises CallError, also for a method that cannot be called."""
        shape = self._shapes.get(method)
        if shape is None:
            raise CallError("there is no such method")
        try:
            arguments = shape.arguments.decode(body)
            if not shape.revives:
                return arguments
            revived = list(arguments)
            for place in shape.revives:
                revived[place] = self._revive(revived[place])
            return tuple(revived)
        except _UNREADABLE as error:
            raise CallError(f"not its arguments: {error}") from None

    def pack_result(self, number: int, result: object) -> bytes:
        """A reply as bytes. Raises CannotTravel."""
        return self._pack((number, ERROR if isinstance(result, BrokerError) else RESULT, result))

    def pack_failure(self, number: int) -> bytes:
        """The reply of a call that failed."""
        return self._pack((number, FAILED, None))

    def _pack(self, value: tuple[object, ...]) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, ValueError, OverflowError) as error:  # lone surrogates are a ValueError
            raise CannotTravel(str(error)) from None

    # -- types

    def _shape(self, method: Any) -> _Shape:
        hints = get_type_hints(method)
        result = _without_error(hints.pop("return"))
        given = [self._carried(hint) for hint in hints.values()]
        revives = tuple(place for place, hint in enumerate(hints.values()) if given[place] != hint)
        answered = self._carried(result)
        arguments = tuple.__class_getitem__(tuple(given))
        return _Shape(
            msgspec.msgpack.Decoder(arguments, dec_hook=self._from_data),
            msgspec.msgpack.Decoder(answered, dec_hook=self._from_data),
            revives,
            answered != result,
        )

    def _carried(self, hint: Any) -> Any:
        """The type that stands for `hint` on the way."""
        if isinstance(hint, type) and get_origin(hint) is None:
            if issubclass(hint, BrokerError):
                return ErrorData
            if issubclass(hint, Model):
                self._models[hint.__name__] = hint
                return ModelData
        parts = tuple(part if part is ... else self._carried(part) for part in get_args(hint))
        if parts == get_args(hint):
            self._note_models(hint)
            return hint
        origin = get_origin(hint)
        return reduce(or_, parts) if origin in (Union, UnionType) else origin[parts]

    def _note_models(self, hint: Any) -> None:
        """Learn the models among the fields of a class; they are decoded by `_from_data`."""
        for field in get_type_hints(hint).values() if hasattr(hint, "__struct_fields__") else ():
            self._carried(field)

    def _from_data(self, kind: type, data: object) -> object:
        """A model that is the field of a class; what is only an `object` stays as it came."""
        if kind is object:
            return data
        if not (isinstance(data, list) and len(data) == 3 and self._models.get(data[1]) is kind):
            raise ValueError(f"not a {kind.__name__}")
        return self._models[data[1]].read(data[2])

    def _revive(self, value: Any) -> Any:
        """The value with objects in the place of data, which is the value itself or members of a list."""
        if isinstance(value, list):
            return [self._revive_one(each) for each in value]
        return self._revive_one(value)

    def _revive_one(self, value: object) -> object:
        if isinstance(value, ErrorData):
            return value.error()
        if isinstance(value, ModelData):
            model = self._models.get(value.name)
            if model is None:
                raise ValueError(f"{value.name} is no model of this contract")
            return model.read(value.json)
        return value


_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def _to_data(value: object) -> object:
    if isinstance(value, BrokerError):
        return ErrorData.of(value)
    if isinstance(value, Model):
        return ModelData(
            type(value).__name__, value.model_dump_json(by_alias=True, exclude_unset=True).encode()
        )
    raise TypeError(f"{type(value).__name__} cannot be sent over a link")


def _without_error(hint: Any) -> Any:
    """The annotation of a result without the error at its top, which has a kind of its own."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    parts = tuple(part for part in get_args(hint) if part is not BrokerError)
    return reduce(or_, parts)


class SlotCalls(Protocol):
    """What the actor of every slot can be asked."""

    async def ready(self) -> BrokerError | None:
        """Return when the actor can take calls, or the error that keeps it from doing so."""

    async def process_id(self) -> int:
        """The id of the actor's process."""


SLOT_CALLS: Calls[SlotCalls] = Calls(SlotCalls)
