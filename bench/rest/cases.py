"""What is asked of the HTTP door: the requests of each case, and the bare ones that stand beside them."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import orjson

from bench.product import PROGRAM, build_event, check

VALUES = 64
"""Stored values, each of which is replaced in turn."""
_PROJECT = "bench"
ACCOUNT = "demo"
VOTERS = 20_000
ANSWERS = {1: 0.8, 100: 0.0}
"""Answers a request, and the floor: the bare deployment does not take longer for more of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One operation.

    Attributes:
        floor: the least share of the bare deployment's rate that it must reach.
    """

    name: str
    floor: float
    requests: list[str]
    status: int
    body_bytes: int

    def bare(self) -> list[str]:
        """The same requests of the bare deployment, which answers as many bytes with the same status."""
        path = f"/bare/{self.status}/{self.body_bytes}"
        return [bare_request(request, path) for request in self.requests]


def prepare(client: httpx.Client, names: Collection[str] = ()) -> list[Case]:
    """Make what is read and published to; returns the cases.

    Args:
        client: of an admin, with the address of the REST interface.
        names: of the cases that are wanted; all if there are none.

    Raises:
        ProductError: the product refuses something.
    """
    post(client, "/projects", {"id": _PROJECT, "name": "Bench"})
    program = {"id": PROGRAM, "name": "Bench", "projectId": _PROJECT, "metadata": {"venue": "x" * 40}}
    post(client, "/programs", program)
    for number in range(VALUES):
        post(client, f"/storage/{_PROJECT}", build_value(number))
    content = {
        "theme": {"colour": "#102030", "font": "x" * 40},
        "scenes": [{"id": f"scene-{number}", "title": "x" * 30, "token": "secret"} for number in range(8)],
        "dataSources": [{"id": "scores", "name": "Scores", "type": "api", "url": "https://example.org/"}],
    }
    revision = {"title": "Bench", "version": "1", "status": "published", "content": content}
    post(client, f"/projects/{_PROJECT}/application/revisions", revision)
    builder = Builder(client, names)
    value = build_value(0)
    value_paths = [f"/storage/{_PROJECT}/value-{number:02}" for number in range(VALUES)]
    cases = [
        builder.case("GET program", 0.8, "GET", [f"/programs/{PROGRAM}"]),
        builder.case("GET stored value", 0.8, "GET", value_paths, open_=True),
        builder.case(
            "POST stored value", 0.8, "POST", [f"/storage/{_PROJECT}"] * VALUES,
            [value | {"id": f"value-{number:02}"} for number in range(VALUES)],
        ),
        builder.case(
            "GET live revision", 0.8, "GET", [f"/projects/{_PROJECT}/application/live/1"], open_=True
        ),
        builder.case("where to connect", 1.5, "GET", [f"/connect?programId={PROGRAM}"], open_=True),
        builder.case("where to connect, by the API", 0.8, "GET", [f"/connect?programId={PROGRAM}"]),
        builder.case("durable publish", 0.9, "POST", [f"/programs/{PROGRAM}/events"], [build_event()]),
        *(build_answers(client, builder, floor, batch) for batch, floor in ANSWERS.items()),
    ]  # fmt: skip
    return [case for case in cases if case is not None]


def build_answers(client: httpx.Client, builder: "Builder", floor: float, batch: int) -> Case | None:
    """Each request has other visitors, until all have answered; an impression makes each change a count."""
    metadata = {"title": "Who wins", "options": ["Home", "Away", "Draw"]}
    event = {"event": "Poll#open", "metadata": metadata}
    reply = client.post(f"/programs/{PROGRAM}/events", json=event)
    check(reply)
    place = {"measureName": "whoWins", "contextId": reply.json()["id"]}
    shown = place | {"visitorId": "somebody", "sessionId": "somebody"}
    bodies: list[dict[str, object]] = [
        {
            "responses": [
                place | {"measureValue": number % 3, "visitorId": f"visitor-{number}"}
                for number in range(first, first + batch)
            ],
            "impressions": [shown],
        }
        for first in range(0, VOTERS, batch)
    ]
    path = f"/responses/{ACCOUNT}/{_PROJECT}/{PROGRAM}"
    name = "answer and impression" if batch == 1 else f"{batch} answers"
    return builder.case(name, floor, "POST", [path] * len(bodies), bodies, open_=True)


def build_value(number: int) -> dict[str, object]:
    """A stored value of about 300 bytes."""
    return {"id": f"value-{number:02}", "metadata": {"home": ["Kim", "Vo"], "filler": "x" * 200}}


def post(client: httpx.Client, path: str, body: dict[str, object]) -> None:
    """Make something."""
    check(client.post(path, json=body))


class Builder:
    """Writes requests as they go over the wire."""

    def __init__(self, client: httpx.Client, names: Collection[str]) -> None:
        self._client = client
        self._names = names
        self._host = urlsplit(str(client.base_url)).netloc

    def case(
        self,
        name: str,
        floor: float,
        method: str,
        paths: list[str],
        bodies: list[dict[str, object]] | None = None,
        *,
        open_: bool = False,
    ) -> Case | None:
        """A case, if it is wanted; one request is made to see what comes back.

        Args:
            open_: whether callers need no token.
        """
        if self._names and name not in self._names:
            return None
        contents = [orjson.dumps(body).decode() for body in bodies] if bodies else [""] * len(paths)
        requests = [
            self._request(method, path, content, with_token=not open_)
            for path, content in zip(paths, contents, strict=True)
        ]
        kind = {"Content-Type": "application/json"} if bodies else {}
        answer = self._client.request(method, paths[0], content=contents[0], headers=kind)
        check(answer)
        return Case(name, floor, requests, answer.status_code, len(answer.content))

    def _request(self, method: str, path: str, content: str, *, with_token: bool) -> str:
        lines = [f"{method} /api/v1{path} HTTP/1.1", f"Host: {self._host}", "Accept: */*"]
        if with_token:
            lines.append(f"Authorization: {self._client.headers['Authorization']}")
        if content:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join([*lines, "", content])


def bare_request(request: str, path: str) -> str:
    """A request with another path: same method, headers and body."""
    method, _, rest = request.partition(" ")
    _, _, rest = rest.partition(" ")
    return f"{method} {path} {rest}"
