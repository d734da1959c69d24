"""Checks at each start that the ingress is ours, so that no port of Ray Serve stays open unnoticed.

Ray tells only its own log when HAProxy does not start, and goes on trying. And on a joined cluster the
processes that start HAProxy may not have our settings. Either stops the start, with the reason.
"""

import asyncio
import os
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from pathlib import Path

import orjson

from broker.deployments import ingress_key
from broker.deployments.ingress import APPLICATION
from broker.deployments.ingress_start import FAULT
from broker.deployments.ray_internals.haproxy import CONFIGURATION
from broker.setting_rules import NODE
from broker.settings import Settings
from broker.setup_error import SetupError

_LOOK_S = 0.5
_SOON_S = 60.0  # its first start and changes of it take seconds on a busy machine
_ANSWER_S = 5.0
_CONNECT_S = 1.0
_MOST_BYTES = 64 << 10  # that are read of a reply: others than our ingress may answer, too
_TRIES = 4  # before a port is somebody else's: our own ingress may be slow to answer, too
_ROUTES = "/-/routes"
_PAGE = "/healthz"  # a replica's; it refuses an ingress that it does not know
_NO_API = "the API does not answer through the ingress of this node"
_ELSEWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to call what listens everywhere


async def require_not_taken(settings: Settings, nodes: Iterable[str]) -> None:
    """Return unless other programs listen at ports of the ingress, which on other nodes nobody else notices.

    An ingress that an earlier start has left is no other program. A port that cannot be reached from here is
    not looked at: `find_ingress_fault` does so on each node, once everything has started.

    Args:
        nodes: their addresses.

    Raises:
        SetupError: it names the node, the port and the setting for another one.
    """
    doors = [(settings.ops_host, settings.operations_port, "BROKER_OPS_PORT")]
    if not settings.proxy_protocol:  # else our own ingress may wait for a header from here
        doors.append((settings.bind_host, settings.http_port, "--http-port"))
    looked_at = [
        (node, port, setting)
        for node in nodes
        for host, port, setting in doors
        if host == NODE or host in _ELSEWHERE
    ]
    taken = await asyncio.gather(*(_is_taken(node, port) for node, port, _ in looked_at))
    for (node, port, setting), is_taken in zip(looked_at, taken, strict=True):
        if is_taken:
            raise SetupError(f"port {port} of the node {node} is in use; choose another with {setting}")


async def _is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there who is not our ingress."""
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                head, _ = await _ask(host, port, _ROUTES)
            if _is_ours(head):
                return False
        await asyncio.sleep(_LOOK_S)
    return True


async def start_unless_refused(start: Awaitable[None]) -> None:
    """Wait for `start`, which brings the ingress up.

    Raises:
        SetupError: the program that Ray starts as HAProxy refuses, with its reason. `start` cannot succeed.
    """
    starting = asyncio.ensure_future(start)
    while not (await asyncio.wait({starting}, timeout=_LOOK_S))[0]:
        if reason := await asyncio.to_thread(_read_fault):
            raise SetupError(f"the ingress cannot be started: {reason}")
    await starting


async def require_our_ingress(settings: Settings) -> None:
    """Return when both doors of this node's ingress are ours. Without a key there is none to look for.

    Raises:
        SetupError: they are not.
    """
    if fault := await find_ingress_fault(settings, _SOON_S):
        raise SetupError(fault)


async def find_ingress_fault(settings: Settings, within_s: float) -> str:
    """What is wrong with the ingress of this node and stays wrong for so long; empty when nothing is.

    It is ours, and the API answers through it.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while settings.ingress_key and (reason := await _look(settings)):
        if loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_S)
            continue
        if refusal := await asyncio.to_thread(_read_fault):
            return f"the ingress cannot be started: {refusal}"
        if reason == _NO_API:
            return reason
        return (
            f"the ingress of this node is not the product's ({reason}): every node's Ray must start"
            f" {_program()} as HAProxy; see deploy/node.env"
        )
    return ""


def ingress_host(settings: Settings) -> str:
    """Where this node's ingress is called; what listens everywhere is called at the loopback address."""
    return _ELSEWHERE.get(settings.bind_host, settings.bind_host)


async def _look(settings: Settings) -> str:
    """What is wrong with the doors; empty when nothing is."""
    ports = {"operators": (settings.ops_host, settings.operations_port)}
    ports["clients"] = (settings.bind_host, settings.http_port)
    for door, (host, port) in ports.items():
        try:
            async with asyncio.timeout(_ANSWER_S):
                head, body = await _ask(_ELSEWHERE.get(host, host), port, _ROUTES)
        except (OSError, TimeoutError):
            return f"nothing answers {door} at {host}:{port}"
        routes = _routes(body)
        if not _is_ours(head):
            return f"something else answers {door} at {host}:{port}"
        if (APPLICATION in routes) != (door == "operators"):
            return f"{_ROUTES} is wrong for {door} at {host}:{port}"
    try:
        async with asyncio.timeout(_ANSWER_S):
            head, _ = await _ask(_ELSEWHERE.get(host, host), port, _PAGE)
    except (OSError, TimeoutError):
        return _NO_API
    if head.startswith(b"HTTP/1.1 403 "):
        return f"its {ingress_key.NAME}, or its RAY_AUTH_TOKEN, is another"
    return "" if head.startswith(b"HTTP/1.1 200 ") else _NO_API


async def is_routed(settings: Settings, application: str, within_s: float) -> bool:
    """Whether the ingress of this node leads to an application of Serve's, at once or within this time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    host = _ELSEWHERE.get(settings.ops_host, settings.ops_host)
    while True:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                _, body = await _ask(host, settings.operations_port, _ROUTES)
            if application in _routes(body):
                return True
        if loop.time() >= deadline_s:
            return False
        await asyncio.sleep(_LOOK_S)


async def _ask(host: str, port: int, path: str) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        reply = b""
        while len(reply) < _MOST_BYTES and (piece := await reader.read(_MOST_BYTES)):
            reply += piece
        head, _, body = reply.partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head, body


def _is_ours(head: bytes) -> bool:
    """Whether our ingress has written the head of a reply."""
    return b"x-content-type-options: nosniff" in head.lower()


def _routes(body: bytes) -> set[str]:
    """The applications that a reply names; none where it is something else."""
    with suppress(orjson.JSONDecodeError):
        routes = orjson.loads(body)
        if isinstance(routes, dict):
            return {name for name in routes.values() if isinstance(name, str)}
    return set()


def forget_faults() -> None:
    """Remove what the program said before this start; it says it again when it still holds."""
    for path in _faults():
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _read_fault() -> str:
    """Why the program refused, on this node."""
    for path in _faults():
        with suppress(OSError):
            return path.read_text()
    return ""


def _faults() -> list[Path]:
    place = Path(os.environ.get(CONFIGURATION, ""))
    return list(place.parent.glob(f"*/{place.name}.{FAULT}"))


def configurations() -> list[Path]:
    """Those of the HAProxy of this node; in our environment Ray names the place."""
    place = Path(os.environ.get(CONFIGURATION, ""))
    return list(place.parent.glob(f"*/{place.name}"))


def _program() -> str:
    return os.environ.get("RAY_SERVE_HAPROXY_BINARY_PATH", "broker-ingress")
