"""Calls that native code leaves to Python: looked up by name, run as REST runs them, answered.

The dispatcher decides nothing about a resource. It translates a call to `invoke` and its outcome to
JSON-RPC 2.0. `subscribe` and `unsubscribe` exist on this door only and are handed to `Subscriptions`;
`login` is the operation that REST has too, after which the connection has the session of the new token.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson

from broker._native import Server
from broker.domain.idempotency import check_key
from broker.domain.strict_json import may_have, parse_json
from broker.domain.users import Principal
from broker.errors import (
    BrokerError,
    InternalError,
    InvalidRequest,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
    forget_frames,
)
from broker.gateway.lanes import LaneLimits, Lanes
from broker.gateway.rendering import error_json, joined_json, paged_json, tagged_json, unknown_method_json
from broker.gateway.sessions import Session, Sessions, SignIns
from broker.gateway.upcalls import OperationCall
from broker.operations.context import Context
from broker.operations.invoke import check_audience, invoke
from broker.operations.jsonrpc import MAX_RESULT_BYTES
from broker.operations.registry import Effect, Operation, Registry
from broker.operations.results import Json
from broker.operations.services import Services

_log = logging.getLogger(__name__)

LOGIN = "login"
SUBSCRIBE = "subscribe"
TOKEN = "access_token"  # noqa: S105 - the name of a param
CALL_TIMEOUT_S = 120.0  # every wait inside an operation is shorter: this bounds a bug

Answered = Callable[[str, Mapping[str, Any]], None]
"""Learns of an operation that has gone well: the account and the params as sent."""

FollowHandler = Callable[[OperationCall, Session | None, dict[str, Any]], Awaitable[bytes | None]]
"""Handles `subscribe` or `unsubscribe`: the result's JSON, or None to have native code decide again."""


class Dispatcher:
    """Answers every call exactly once. Owns the tasks in which calls run.

    Attributes:
        name: with the number of a connection it names that among all there are.
    """

    def __init__(
        self,
        server: Server,
        services: Services,
        registry: Registry,
        sessions: Sessions,
        follows: Mapping[str, FollowHandler],
        limits: LaneLimits | None = None,
        answered: Mapping[str, Answered] | None = None,
        votes_before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._server = server
        self._votes_before = votes_before
        self.name = services.ids.uuid7()  # no two gateways have a connection of one name
        self._answered = dict(answered or {})
        self._services = services
        self._registry = registry
        self._sessions = sessions
        self._follows = dict(follows)
        self._sign_ins = SignIns()
        self._lanes = Lanes(self._answer, self._refuse, limits)

    @property
    def running(self) -> int:
        """How many calls run now."""
        return self._lanes.running

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return self._lanes.waiting

    def dispatch(self, call: OperationCall) -> None:
        """Take a call; calls of one connection must come in the order sent."""
        self._lanes.submit(call)

    async def close(self) -> None:
        """Answer every call: refuse those that wait, and cancel those that still run after a moment."""
        await self._lanes.close()

    def _refuse(self, call: OperationCall, error: BrokerError) -> None:
        self._server.reply_error(call.conn, call.ticket, error_json(error))

    async def _answer(self, call: OperationCall, ordered: Callable[[], None]) -> None:
        request_id = self._services.ids.uuid7()
        try:
            result = await self._run_in_time(call, request_id, ordered)
        except _NotRun as refusal:
            self._server.reply_error(call.conn, call.ticket, refusal.error)
        except BrokerError as error:
            self._note(call, request_id, error)
            self._refuse(call, error)
            forget_frames(error)
        except asyncio.CancelledError:
            self._refuse(call, self._broken_off(call, "this gateway is shutting down"))
            raise
        except Exception as error:
            _log.exception("call_failed", extra={"operation": call.method, "requestId": request_id})
            self._refuse(call, InternalError(f"an internal error; its request id is {request_id}"))
            forget_frames(error)
        else:
            if result is None:
                self._server.retry(call.conn, call.ticket)
            else:
                self._server.reply(call.conn, call.ticket, result)

    async def _run_in_time(
        self, call: OperationCall, request_id: str, ordered: Callable[[], None]
    ) -> bytes | None:
        timeout = asyncio.timeout(CALL_TIMEOUT_S)
        try:
            async with timeout:
                return await self._run(call, request_id, ordered)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._broken_off(call, f"no reply within {CALL_TIMEOUT_S:.0f} seconds") from None

    def _broken_off(self, call: OperationCall, why: str) -> BrokerError:
        """The error of a call that ran and came to no end."""
        operation = self._registry.find(call.method)
        has_effect = operation is not None and operation.effect is not Effect.NONE
        kind = OutcomeUnknown if has_effect else Unavailable
        return kind(why, retry_after_s=1)

    async def _run(self, call: OperationCall, request_id: str, ordered: Callable[[], None]) -> bytes | None:
        # Find the session and what is called; a subscription has a path of its own.
        number = self._sign_ins.resolve(call.conn, call.principal)
        session = self._sessions.find(call.account, number) if number else None
        follow = self._follows.get(call.method)
        if follow is not None:
            return await self._follow(follow, call, session)
        operation = self._registry.find(call.method)
        if operation is None:
            raise _NotRun(unknown_method_json(call.method))
        if session is None and not may_have(call.params, TOKEN):
            check_audience(operation, Principal(call.account))
        # Take from the params what belongs to the call and not to the operation.
        params = _parse_params(call.params)
        token = _take_token(params)
        if token is not None:
            session = await self._sessions.open(call.account, token, call.address)
        with_etag = operation.has_etag and _take_flag(params, "withEtag")
        with_cursor = operation.has_cursor and _take_flag(params, "withCursor")
        route = operation.route
        streams_body = route is not None and route.streams_body
        context = Context(
            services=self._services,
            principal=session.principal if session else Principal(call.account),
            request_id=request_id,
            address=call.address,
            connection=f"{self.name}/{call.conn}",
            idempotency_key=_take_key(operation, params),
            if_match=_take_match(operation, params),
            body=_once(orjson.dumps(params)) if streams_body else None,
            ordered=ordered,
            votes_before=self._votes_before,
        )
        if route is not None and route.streams_body:
            # As at the other door: the path's params come apart from the body, which the handler reads.
            params = {name: params[name] for name in route.names if name in params}
        # Run it, and render the result.
        answered = await invoke(operation, context, params)
        result = await joined_json(answered, MAX_RESULT_BYTES)
        if operation.name in self._answered:
            self._answered[operation.name](call.account, params)
        if operation.name == LOGIN:
            await self._sign_in(call, result)
        if with_cursor:
            return paged_json(result, answered.cursor if isinstance(answered, Json) else None)
        return tagged_json(result) if with_etag else result

    async def _follow(
        self, follow: FollowHandler, call: OperationCall, session: Session | None
    ) -> bytes | None:
        """Subscribe or unsubscribe; who subscribes with a token of its own is signed in with it.

        A subscription lasts as long as the rights of its connection: there is no other session that it could
        belong to.
        """
        params = _parse_params(call.params)
        token = _take_token(params)
        if token is None or call.method != SUBSCRIBE:
            return await follow(call, session, params)
        session = await self._sessions.open(call.account, token, call.address)
        result = await follow(call, session, params)
        self._server.sign_in(call.conn, call.account, token)
        self._sign_ins.add(call.conn, session.number)
        return result

    async def _sign_in(self, call: OperationCall, result: bytes) -> None:
        token = orjson.loads(result)["access_token"]
        session = await self._sessions.open(call.account, token, call.address)
        self._server.sign_in(call.conn, call.account, token)
        self._sign_ins.add(call.conn, session.number)

    def _note(self, call: OperationCall, request_id: str, error: BrokerError) -> None:
        # What operations fail with is logged by `invoke`; following a topic does not go through it.
        if error.status >= InternalError.status and call.method in self._follows:
            fields = {
                "operation": call.method,
                "requestId": request_id,
                "cause": error.log_text or error.message,
            }
            _log.warning("call_failed", extra=fields)


class _NotRun(Exception):
    """A call that names nothing to run, or that cannot be read; `error` is its JSON-RPC error object."""

    def __init__(self, error: bytes) -> None:
        super().__init__()
        self.error = error


def _parse_params(raw: bytes) -> dict[str, Any]:
    """The params as a dictionary.

    Raises:
        InvalidRequest: they are no object, as by position nothing can be passed; or see `parse_json`.
    """
    if not raw:
        return {}
    params = parse_json(raw)
    if not isinstance(params, dict):
        raise InvalidRequest.of_field("params", "must be an object")
    return params


def _take_token(params: dict[str, Any]) -> str | None:
    """Take `access_token` out of the params; it is never part of a resource, and authenticates this call.

    Raises:
        Unauthenticated: it is there and is no text.
    """
    token = params.pop(TOKEN, None)
    if token is not None and (not isinstance(token, str) or not token):
        raise Unauthenticated("access_token must be a string")
    return token


def _take_key(operation: Operation, params: dict[str, Any]) -> str | None:
    """Take `idempotencyKey` out of the params of an operation that honours it."""
    if operation.effect is not Effect.KEYED:
        return None
    key = params.pop("idempotencyKey", None)
    return None if key is None else check_key(key, "idempotencyKey")


def _take_match(operation: Operation, params: dict[str, Any]) -> str | None:
    """Take `ifMatch`, which is `If-Match` here, out of the params of an operation that honours it."""
    if not operation.honours_if_match:
        return None
    match = params.pop("ifMatch", None)
    if match is not None and not isinstance(match, str):
        raise InvalidRequest.of_field("ifMatch", "must be an entity tag, or several separated by commas")
    return match


def _take_flag(params: dict[str, Any], name: str) -> bool:
    """Take what says how the result is wanted out of the params."""
    wanted = params.pop(name, None)
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequest.of_field(name, "must be true or false")
    return bool(wanted)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
