"""The registry: every operation, defined once and reached by REST and by WebSocket.

An `Operation` has a name (WebSocket method, OpenAPI operationId, metric label, log field), a params model, a
result model, and a handler. Its rule in the permission table, looked up by name, says who may call it, and on
what. `invoke` refuses callers whom the rule refuses on every resource; the handler asks
`broker.domain.permissions` once it knows the resource.

The params model is the union of path, query and body fields under their wire names; `programId` names the
path's program. REST fills it from path, query and body; WebSocket from `params`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from string import Formatter
from typing import Any, get_type_hints

from pydantic import BaseModel

from broker.domain.permission_table import Rule
from broker.domain.permissions import rule_of
from broker.domain.users import Role
from broker.errors import BrokerError
from broker.operations.context import Context
from broker.operations.results import Result

OperationHandler = Callable[[Context, Any], Awaitable[Result]]
"""Runs an operation: takes the call and its params, whose models its annotations name."""
_OF_HANDLER: Any = object()


class Effect(Enum):
    """What calling an operation twice does, and so what is told when nobody knows whether it was done."""

    NONE = "nothing of the account's own is changed"
    UNKEYED = "it changes something, and recognises a repeat by itself or not at all"
    KEYED = "it changes something, and recognises a repeat by its `Idempotency-Key`"


@dataclass(frozen=True, slots=True)
class Route:
    """Where REST serves an operation.

    Attributes:
        method: `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
        path: below `/api/v1`, placeholders in braces named as the params' wire names.
        status: of success; 204 sends no body.
        location: makes the `Location` of a created resource, below `/api/v1`, from its JSON fields and the
            params.
        locates_itself: the handler sets `Location`, where there is one.
        description: more than the summary says. `{name}` stands for the value of the setting `name`.
        streams_body: the handler reads `Context.body` itself; the door parses nothing.
        form: takes `application/x-www-form-urlencoded` too.
        repeated: body fields that must say again what the path says. The door passes an absent one as null,
            because it cannot be told from the path's value otherwise, and the handler refuses null.
        echoed: params of the path that the OpenAPI document shows in the body too; the door takes any of them
            in any body, as long as it is the same.
        produces: media types of the result, the preferred one first; `Context.accept` is one of them.
        consumes: media types of a JSON body; `Context.body_type` is the one that came.
        whole_body: the param that a body of any JSON becomes as a whole; None makes its members params.
        takes_query: where no body comes with a method that has one, the query is read in its place.
        ends_with_client: whether the work ends when the client hangs up before it is answered.
        is_proxy: whether the request is for another server: its query, whatever it is, becomes the param
            `query`, any `Accept` will do, and `Context.headers` has the headers.
        headers: names of headers that a success has besides `Location` of a created resource and `ETag`.
        also: other statuses of a success, and what they mean.
    """

    method: str
    path: str
    status: int = 200
    location: str | None = None
    locates_itself: bool = False
    streams_body: bool = False
    form: bool = False
    description: str = ""
    repeated: tuple[str, ...] = ()
    echoed: tuple[str, ...] = ()
    produces: tuple[str, ...] = ("application/json",)
    consumes: tuple[str, ...] = ("application/json",)
    whole_body: str | None = None
    takes_query: bool = False
    ends_with_client: bool = False
    is_proxy: bool = False
    headers: tuple[str, ...] = ()
    also: Mapping[int, str] = field(default_factory=dict)

    @property
    def said_again(self) -> tuple[tuple[str, str], ...]:
        """Each of `repeated`, with the name of the path's param that it says again."""
        return tuple((again, self.names[-1]) for again in self.repeated)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the path's placeholders, in their order."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.path) if name)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be done. See the module's docstring.

    Attributes:
        rule: of the permission table.
        route: None for what only connections can do: REST does not serve it.
        params: the model of the handler's second parameter, unless another one is given.
        result: a model, a list of models (`list[Program]`), or None; for the OpenAPI document. It is what the
            handler returns, unless that is a finished form (`Json`, `Stream`) that does not say so.
        former_names: earlier WebSocket names that still work.
        errors: what the handler raises beyond what every operation may answer, and beyond what follows from
            its rule and its effect (`broker.rest.openapi_replies`).
        own_effect: what its route does not say: without it every method but GET is a change with a key, and
            what has no route has no effect.
        is_owners: the effect is that of a program's owner, which keeps the key with it: the handler passes
            `Context.key` on. Otherwise `invoke` keeps it around the handler.
        is_resumable: it is done in several commits, and another call goes on where one was broken off: the
            key is kept behind the last. A handler whose commits know it by `Context.key` need not look.
        kept: makes of the result the one that a repeat with the key gets.
        has_etag: whether the result has an entity tag, `etag_of` its JSON: over HTTP the header `ETag`, which
            a GET takes back in `If-None-Match`; over WebSocket the result's member `etag` for callers who
            pass `withEtag`.
        has_cursor: whether the result is a list that may be one page of more: over HTTP the header `Link`
            says where the next one is, over WebSocket callers who pass `withCursor` get `{items, cursor}`.
        is_list: whether it reads as much as there is, or a range of it: it takes a turn among such reads
            (`broker.operations.list_turns`), and so does each page of a streamed result.
        admit: takes from the rate of the caller's address, and raises SlowDown; reads nothing. It is called
            before anything is read, the idempotency key too: a repeat counts as another call.
        is_traced: whether requests over HTTP may be traced (`broker.tracing`).
        honours_if_match: whether a change depends on `Context.if_match`.
        limit: bytes of the body; None takes the setting's general limit.
        example: params, by wire name.
    """

    name: str
    summary: str
    handler: OperationHandler
    route: Route | None
    params: type[BaseModel] = _OF_HANDLER
    result: Any = _OF_HANDLER
    former_names: tuple[str, ...] = ()
    errors: tuple[type[BrokerError], ...] = ()
    own_effect: Effect | None = None
    is_owners: bool = False
    is_resumable: bool = False
    kept: Callable[[Result], Result] | None = None
    has_etag: bool = False
    has_cursor: bool = False
    is_list: bool = False
    admit: Callable[[Context, Any], None] | None = None
    is_traced: bool = False
    honours_if_match: bool = False
    limit: int | None = None
    example: Mapping[str, Any] | None = None
    tag: str = ""
    rule: Rule = field(init=False)
    effect: Effect = field(init=False)

    def __post_init__(self) -> None:
        """Find the rule and the models. Raises ValueError for a name that is not in the permission table."""
        if self.params is _OF_HANDLER or self.result is _OF_HANDLER:
            _, params, result = get_type_hints(self.handler, include_extras=True).values()
            if self.params is _OF_HANDLER:
                object.__setattr__(self, "params", params)
            if self.result is _OF_HANDLER:
                object.__setattr__(self, "result", None if result is type(None) else result)
        object.__setattr__(self, "rule", rule_of(self.name))
        object.__setattr__(self, "effect", self.own_effect or _effect_of(self.route))

    @property
    def audience(self) -> frozenset[Role] | None:
        """The roles that may call it at all; None lets callers without a token in."""
        return self.rule.audience


def of_resource(tag: str, *operations: Operation) -> tuple[Operation, ...]:
    """The operations on one resource; the documents list them under `tag`."""
    return tuple(replace(operation, tag=tag) for operation in operations)


def _effect_of(route: Route | None) -> Effect:
    if route is None or route.method == "GET":
        return Effect.NONE
    return Effect.UNKEYED if route.is_proxy else Effect.KEYED


class Registry:
    """All operations, by every name they go by. Built once at start; immutable afterwards."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """Raises ValueError when two operations share a name or a route."""
        self.operations = tuple(operations)
        self._by_name: dict[str, Operation] = {}
        routes = set()
        for operation in self.operations:
            for name in (operation.name, *operation.former_names):
                if name in self._by_name:
                    raise ValueError(f"two operations are named {name}")
                self._by_name[name] = operation
            if operation.route is None:
                continue
            place = (operation.route.method, operation.route.path)
            if place in routes:
                raise ValueError(f"two operations are served at {place}")
            routes.add(place)

    @property
    def routed(self) -> tuple[Operation, ...]:
        """The operations that REST serves; the others are WebSocket's alone."""
        return tuple(operation for operation in self.operations if operation.route is not None)

    def find(self, name: str) -> Operation | None:
        """The operation that goes by `name`, by a former name too."""
        return self._by_name.get(name)
