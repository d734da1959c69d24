"""The HTTP door on a real socket under Schemathesis, which makes requests from the OpenAPI document.

`python -m tests.rest.fuzzing --minutes 10` runs longer than the tests do, with seeds that nobody chose.
"""

import argparse
import asyncio
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from broker.demo.matomo import open_stand_in
from broker.errors import BrokerError
from broker.storage.embedded.server import EmbeddedPostgres
from tests.analytics.conftest import peer_of
from tests.auth.services import make_user
from tests.fetching.upstream import Seen, Upstream, open_upstream, send
from tests.product import ROLES, Product, open_product

EXAMPLE_ID = "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"  # of what the document's examples are about
# 2030-01-01. Schemathesis sends again what replies say: the clock stands, so that the same seed sends the
# same but for a few requests in a thousand, which have ids of ours in them, or times of the machine's clock.
NOW_MS = 1_893_456_000_000
ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
# Counts small, so that their edges are reached; bytes as they are, because no schema can say them; without
# rates, which would refuse nearly everything.
SETTINGS: Mapping[str, Any] = {
    "token_lifetime_s": 30_000_000,
    "batch_limit_events": 20,
    "import_limit_events": 50,
    "storage_rate_per_address": 0.0,
    "storage_rate_per_account": 0.0,
    "fetch_rate_per_address": 0.0,
    "fetch_rate_per_account": 0.0,
    "login_rate_per_address": 0.0,
    "login_rate_per_account": 0.0,
    "responses_rate_per_address": 0.0,
    "visitors_rate_per_address": 0.0,
    "visitors_rate_per_network": 0.0,
    "login_tries_per_user": 1_000_000,
    "login_tries_per_address": 1_000_000,
}
# What PUT and PATCH of the examples change: where it is, what it belongs to, what it is.
_CHANGED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("/programs/final-2026/events", {"id": "final-2026", "name": "The final"}, {"event": "Score#update"}),
    (
        "/projects/football/application/revisions",
        {"id": "football", "name": "Football"},
        {"title": "Season 2027"},
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A door to be fuzzed: `url` ends before `/openapi.json`."""

    url: str
    product: Product


@asynccontextmanager
async def open_target(dsn: str) -> AsyncIterator[Target]:
    """The product at a real socket, with what the examples of the document speak of."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(open_upstream(_standings))
        matomo = await stack.enter_async_context(open_stand_in())
        settings = {
            **SETTINGS,
            **peer_of(matomo).settings,
            "fetch_allow_hosts": (f"127.0.0.1:{upstream.port}",),
        }
        product = await stack.enter_async_context(open_product(dsn, **settings))
        product.clock.stop()
        product.clock.forward_ms = NOW_MS - product.clock.now_ms()
        keeper = _Keeper(product)
        await keeper.renew("admin")
        await _furnish(product, upstream)
        port = await stack.enter_async_context(_serve(keeper))
        yield Target(f"http://127.0.0.1:{port}/api/v1", product)


async def fuzz(target: Target, role: str | None, *options: str) -> str:
    """What Schemathesis reports; empty when it finds nothing.

    Args:
        role: whose token the requests carry; None is without one.
        options: of `schemathesis run`.
    """
    token = [] if role is None else ["--header", f"Authorization: Bearer {role}"]
    command = ["--config-file", str(CONFIGURATION), "run", f"{target.url}/openapi.json", *token, *options]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from schemathesis.cli import schemathesis; schemathesis()",
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return "" if process.returncode == 0 else output.decode(errors="replace")


class _Keeper:
    """In front of the door: turns the name of a role into a token that works, and keeps what can be changed.

    Fuzzing changes users and with them revokes tokens, and deletes what examples are about; without this, the
    rest of a run would be 401 and 404.
    """

    def __init__(self, product: Product) -> None:
        self._product = product
        self._made = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = [await self._with_token(name, value) for name, value in scope["headers"]]
        for place, whole, part in _CHANGED:
            if scope["method"] in ("PUT", "PATCH") and scope["path"] == f"/api/v1{place}/{EXAMPLE_ID}":
                await self._restore(place, whole, part)
        await self._product.app({**scope, "headers": headers}, receive, send)

    async def _restore(self, place: str, whole: dict[str, Any], part: dict[str, Any]) -> None:
        await self.renew("admin")
        async with self._product.door() as door:
            if (await door.get(f"{place}/{EXAMPLE_ID}")).status_code == 200:
                return
            await door.post(f"/{place.split('/')[1]}", json=whole)
            made = (await door.post(place, json=part)).json()["id"]
        async with self._product.services.database.connection() as connection:
            table = place.rpartition("/")[2]
            # A deleted event keeps its id.
            await connection.execute(f"UPDATE {table} SET id = gen_random_uuid() WHERE id = $1", EXAMPLE_ID)
            await connection.execute(f"UPDATE {table} SET id = $1 WHERE id = $2", EXAMPLE_ID, made)

    async def renew(self, role: str) -> None:
        """Make the token of a role one that works."""
        auth, tokens = self._product.services.auth, self._product.tokens
        try:
            await auth.authenticate("demo", tokens[role])
        except BrokerError:
            self._made += 1
            username = f"{role}-{self._made}"
            user = await make_user(
                self._product.services.database, auth, username, role, projects=("own", "football")
            )
            credentials = await self._product.services.users.find_credentials("demo", user.username)
            assert credentials is not None
            tokens[role] = (await auth.issue("demo", user, credentials.valid_from_ms)).text

    async def _with_token(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        role = value.removeprefix(b"Bearer ").decode("latin-1")
        if name != b"authorization" or role not in self._product.tokens:
            return name, value
        await self.renew(role)
        return name, b"Bearer " + self._product.tokens[role].encode()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the test run's


@asynccontextmanager
async def _serve(app: Any) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Otherwise each body waits 40 ms for its head to be acknowledged: asyncio sets it only for sockets
        # that name their protocol. What is accepted inherits it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = _Server(uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def _standings(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, 200, b'{"standings":[]}', Content_Type="application/json")


async def _furnish(product: Product, upstream: Upstream) -> None:
    source = {"id": "standings", "type": "api", "url": f"http://127.0.0.1:{upstream.port}/standings"}
    revision = {"title": "Season 2026", "status": "published", "content": {"dataSources": [source]}}
    async with product.door() as door:
        login = {"username": "kim", "password": "correct horse battery", "role": "producer"}
        await door.post("/users", json=login)
        for project in ("own", "football", "season-2025"):
            await door.post("/projects", json={"id": project, "name": project})
        for program in ("final-2026", "rehearsal"):
            await door.post("/programs", json={"id": program, "name": program})
        await door.post("/programs/final-2026/events", json={"event": "Score#update"})
        await door.post("/projects/football/revisions", json=revision)
        await door.post("/projects/football/revisions", json={"title": "Season 2027"})
        await door.post("/users/me/tokens", json={"name": "Graphics controller"})
        await door.post("/projects/football/analytics/site")
        answer = await door.post("/storage/football", json={"id": "line-up", "metadata": {}})
    assert answer.status_code == 201, answer.text
    async with product.services.database.transaction() as connection:
        await connection.execute("UPDATE events SET id = $1", EXAMPLE_ID)
        await connection.execute("UPDATE api_tokens SET id = $1", EXAMPLE_ID)
        await connection.execute("UPDATE revisions SET id = $1 WHERE version = '2'", EXAMPLE_ID)
        await connection.execute("UPDATE users SET id = $1 WHERE username = 'kim'", EXAMPLE_ID)
        # The log-in of the example; the passwords of the roles are others.
        await connection.execute(
            "UPDATE users SET password_hash = (SELECT password_hash FROM users WHERE username = 'kim')"
            " WHERE account = 'demo' AND username = 'producer'"
        )


async def _main(minutes: float, seed: int, roles: list[str | None]) -> int:
    seconds = max(1, round(60 * minutes / len(roles)))
    failures = 0
    for role in roles:
        sys.stdout.write(f"role {role or 'none'}, seed {seed}\n")
        with tempfile.TemporaryDirectory(prefix="broker-fuzz-") as name:
            server = EmbeddedPostgres(Path(name))
            await server.start()
            try:
                async with open_target(
                    f"postgresql://broker@/postgres?host={server.socket_directory}"
                ) as target:
                    found = await fuzz(target, role, f"--seed={seed}", f"--max-time={seconds}")
            finally:
                await server.stop()
        sys.stdout.write(found)
        failures += bool(found)
    return min(failures, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--role", action="append", choices=[*ROLES, "none"])
    known = parser.parse_args()
    chosen = [None if role == "none" else role for role in known.role or [*ROLES, "none"]]
    sys.exit(asyncio.run(_main(known.minutes, known.seed, chosen)))
