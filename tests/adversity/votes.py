"""A small vote: doors that send answers until they are acknowledged, a reader, and what must come out.

Each visitor always chooses the same, so a repeated answer changes nothing, whether the first try was counted
or not: in the end exactly every visitor is counted once. Each is also shown the poll once, under an
idempotency key, so that impressions are exact too. Where the poll requires signed visitors, each answer has a
token of its own; where it requires issued ones, some are renewed between two answers.
"""

import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import jwt
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.deployments.instance import Instance

_MEASURE = "whoWins"
_OPTIONS = ["Home", "Away", "Draw"]
_BATCH = 20
_PAUSE_S = 0.02
_PATIENCE_S = 180.0
_SETTLE_S = 30.0
_RETRY_S = 0.1
_ANSWER_S = 10.0  # of a socket that says nothing: it is left
_SHOWN_EACH = 5
_SIGNED_S = 3_600
VISITORS = ("any", "issued", "signed")
UNLIMITED = {
    "BROKER_RESPONSES_RATE_PER_ADDRESS": "0",
    "BROKER_VISITORS_RATE_PER_ADDRESS": "0",
    "BROKER_VISITORS_RATE_PER_NETWORK": "0",
}
"""The settings of an instance whose audience has one address."""


def open_shows(instance: Instance, headers: dict[str, str]) -> list["VotingShow"]:
    """A show for each kind of visitors."""
    name, secret = secrets.token_hex(4), make_secret(instance)
    url = f"ws://localhost:{instance.ws_port}/api/v1/ws"
    return [
        VotingShow(instance.url, f"vote-{name}-{kind}", headers, ws_url=url, visitors=kind, secret=secret)
        for kind in VISITORS
    ]


def make_secret(instance: Instance) -> str:
    """A new secret with which visitors of the account `demo` are signed."""
    place = ("--database-url", instance.database_url) if instance.database_url else (
        "--data-dir", str(instance.data_dir),
    )  # fmt: skip
    words = ("account", "visitors", "demo", "--new-secret", "--json", *place)
    program = "from broker.cli.main import main; main()"
    command = (*instance.prefix, sys.executable, "-c", program, *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return str(json.loads(done.stdout)["secret"])


@dataclass
class VotingShow:
    """One poll of one program.

    Attributes:
        url: without a path.
        headers: with a token that may publish.
        ws_url: of a gateway, for voters by WebSocket.
        visitors: whose votes count: `any`, `issued` or `signed`.
        secret: with which visitors are signed.
        shown: how often the poll was shown.
    """

    url: str
    program_id: str
    headers: dict[str, str]
    ws_url: str = ""
    visitors: str = "any"
    secret: str = ""
    shown: int = 0
    account: str = "demo"
    context: str = ""
    chosen: dict[str, int] = field(default_factory=dict)
    issued: dict[str, str] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    acknowledged_s: list[float] = field(default_factory=list)

    async def run(self, disturb: asyncio.Event, *, doors: int, after: int, sockets: int = 0) -> None:
        """Vote, and go on for `after` batches of each door once `disturb` is set; each batch is sent twice.

        `sockets` voters go by WebSocket, one vote after the other; each makes so many votes.

        Raises:
            TimeoutError: a batch was not acknowledged within three minutes, or the results do not show all.
        """
        async with httpx.AsyncClient(base_url=f"{self.url}/api/v1", timeout=30) as client:
            program = {"id": self.program_id, "name": self.program_id}
            await self._insist(client, "/programs", program)
            metadata = {"title": "Who wins", "options": _OPTIONS, "visitors": self.visitors}
            event = {"event": "Poll#open", "metadata": metadata}
            self.context = (await self._insist(client, f"/programs/{self.program_id}/events", event))["id"]
            reading = asyncio.create_task(self._read(client))
            try:
                async with asyncio.TaskGroup() as group:
                    for door in range(doors):
                        group.create_task(self._vote(client, door, disturb, after))
                    for number in range(sockets):
                        group.create_task(self._vote_by_socket(number, disturb, after))
                async with asyncio.timeout(_SETTLE_S):
                    while not self.seen or self.seen[-1] < len(self.chosen):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(_RETRY_S)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            path = f"/responses/{self.account}/undefined/{self.program_id}/report"
            reply = await client.get(path, headers=self.headers)
            self.report = reply.raise_for_status().json()

    @property
    def longest_pause_s(self) -> float:
        """The longest time without an acknowledgement."""
        return max(later - earlier for earlier, later in pairwise(self.acknowledged_s))

    def judge(self) -> list[str]:
        """What is wrong with the report of the program, and with what the reader saw."""
        findings = []
        expected = [list(self.chosen.values()).count(option) for option in range(len(_OPTIONS))]
        polls = [(poll["measureName"], poll["contextId"]) for poll in self.report["responses"]]
        if polls == [(_MEASURE, self.context)]:
            (poll,) = self.report["responses"]
            counted = [option["total"] for option in poll["options"]]
            if counted != expected:
                findings.append(f"{counted} were counted, {expected} were acknowledged")
            if poll["impressions"]["total"] != self.shown:
                findings.append(
                    f"{poll['impressions']['total']} impressions were counted, {self.shown} were shown"
                )
        else:
            findings.append(
                f"the report has the polls {polls}, not one of {_MEASURE} in {self.context}, for which"
                f" {expected} were acknowledged and {self.shown} were shown"
            )
        if max(self.seen, default=0) > len(self.chosen):
            findings.append(f"results said {max(self.seen)} of {len(self.chosen)}")
        return findings

    async def _vote(self, client: httpx.AsyncClient, door: int, disturb: asyncio.Event, after: int) -> None:
        left, sent = after, 0
        chance = random.Random(door)
        while left:
            left -= disturb.is_set()
            fresh = {f"{door}-{sent + n}": chance.randrange(len(_OPTIONS)) for n in range(_BATCH)}
            sent += _BATCH
            first = await self._answer(client, fresh, key=f"{self.program_id} {door} {sent}")
            self.chosen |= fresh
            self.shown += _BATCH
            self.acknowledged_s.append(time.monotonic())
            again = await self._answer(client, fresh)
            assert first["accepted"] + first["duplicates"] == 2 * _BATCH
            assert again == {"accepted": 0, "duplicates": _BATCH}, again
            await asyncio.sleep(_PAUSE_S)

    async def _vote_by_socket(self, number: int, disturb: asyncio.Event, after: int) -> None:
        """Votes of one connection after the other; what was not answered is sent again on the next one."""
        left, sent = after, 0
        chance = random.Random(number)
        voter = _SocketVoter(self.ws_url)
        try:
            while left:
                left -= disturb.is_set()
                visitor, option = f"ws {number}-{sent}", chance.randrange(len(_OPTIONS))
                entry = {"programId": self.program_id, "measureName": _MEASURE, "contextId": self.context}
                entry |= {"visitorId": await self._identify_by_socket(voter, visitor)}
                await voter.insist("respond", entry | {"measureValue": option})
                self.chosen[visitor] = option
                self.acknowledged_s.append(time.monotonic())
                if sent % _SHOWN_EACH == 0:
                    key = f"{self.program_id} {visitor}"
                    await voter.insist("impression", entry | {"sessionId": visitor, "idempotencyKey": key})
                    self.shown += 1
                sent += 1
        finally:
            await voter.close()

    async def _answer(
        self, client: httpx.AsyncClient, chosen: dict[str, int], key: str | None = None
    ) -> dict[str, int]:
        """Send answers; with a key impressions too, one of each visitor."""
        place = {"measureName": _MEASURE, "contextId": self.context}
        ids = await asyncio.gather(*(self._identify(client, name, at == 0) for at, name in enumerate(chosen)))
        body: dict[str, object] = {
            "responses": [
                place | {"measureValue": option, "visitorId": visitor}
                for visitor, option in zip(ids, chosen.values(), strict=True)
            ]
        }
        headers = {}
        if key is not None:
            body["impressions"] = [
                place | {"visitorId": visitor, "sessionId": name}
                for visitor, name in zip(ids, chosen, strict=True)
            ]
            headers["Idempotency-Key"] = key
        path = f"/responses/{self.account}/undefined/{self.program_id}"
        reply: dict[str, int] = await self._insist(client, path, body, headers)
        return reply

    async def _identify(self, client: httpx.AsyncClient, name: str, is_renewed: bool) -> str:
        """The `visitorId` of a visitor; an issued one is the same as before unless it `is_renewed`."""
        if self.visitors != "issued":
            return self._sign(name)
        known = self.issued.get(name)
        if known is None or is_renewed:
            body: dict[str, object] = {} if known is None else {"visitorId": known}
            reply = await self._insist(client, "/responses/visitor", body)
            known = self.issued[name] = reply["visitorId"]
        return known

    async def _identify_by_socket(self, voter: "_SocketVoter", name: str) -> str:
        if self.visitors != "issued":
            return self._sign(name)
        return str((await voter.insist("createVisitor", {}))["visitorId"])

    def _sign(self, name: str) -> str:
        """A token of its own for each answer; a name where any will do."""
        if self.visitors == "any":
            return name
        claims = {"sub": name, "aud": f"votes:{self.account}", "jti": secrets.token_hex(4)}
        return jwt.encode(claims | {"exp": int(time.time()) + _SIGNED_S}, self.secret, algorithm="HS256")

    async def _insist(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: dict[str, object],
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send until it is taken."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    reply = await client.post(path, json=body, headers=self.headers | (headers or {}))
                except httpx.TransportError:
                    reply = None
                if reply is not None and reply.is_success:
                    return reply.json()
                if reply is not None and reply.status_code < 500 and reply.status_code not in (404, 429):
                    raise AssertionError(f"{reply.status_code} {reply.text}")
                await asyncio.sleep(_RETRY_S)

    async def _read(self, client: httpx.AsyncClient) -> None:
        while True:
            with suppress(httpx.HTTPError):
                self.seen.append(await self._total(client))
            await asyncio.sleep(_RETRY_S)

    async def _total(self, client: httpx.AsyncClient) -> int:
        query = {"programId": self.program_id, "contextId": self.context}
        reply = await client.get(f"/responses/{self.account}/{_MEASURE}/results", params=query)
        reply.raise_for_status()
        return int(reply.json()["total"])


class _SocketVoter:
    """Calls over WebSocket, on a new connection whenever one is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: ClientConnection | None = None

    async def insist(self, method: str, params: dict[str, object]) -> Any:
        """Call until it is answered with a result, and return that."""
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                answer = await self._call(message)
                if "result" in answer:
                    return answer["result"]
                error = answer.get("error")
                if error and error["code"] < 500 and error["code"] not in (404, 429):
                    raise AssertionError(f"{method}: {error}")
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _call(self, message: str) -> dict[str, Any]:
        """The answer to a call; an empty one when none came."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                if self._socket is None:
                    self._socket = await connect(self._url, proxy=None)
                await self._socket.send(message)
                answer: dict[str, Any]
                while "id" not in (answer := json.loads(await self._socket.recv())):
                    pass  # a notification
        except (OSError, TimeoutError, WebSocketException):
            if self._socket is not None:
                await self._socket.close()
            self._socket = None
            return {}
        return answer
