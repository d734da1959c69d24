"""How a command finds a running broker, logs in to it, and says that it waits for it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from broker.cli.output import write_notice
from broker.cli.saved_logins import SavedLogins, now
from broker.client import AsyncClient, RetryPolicy
from broker.client.subscription import SubscriptionConfig
from broker.concurrency.tasks import cancel_and_wait

T = TypeVar("T")

DEFAULT_URL = "http://localhost:8000"
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="BROKER_URL",
        help="URL of the broker; the first label of the host is the account. "
        f"By default that of the last log-in, or {DEFAULT_URL}.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="BROKER_TOKEN", help="Access token or API token, instead of the saved log-in."
    ),
]
UsernameOption = Annotated[
    str | None, typer.Option("--username", envvar="BROKER_USERNAME", help="User name to log in with.")
]
Password = Annotated[
    str | None,
    typer.Option("--password", envvar="BROKER_PASSWORD", help="Password; prefer the environment variable."),
]
ProgramId = Annotated[str, typer.Argument(help="Id of the program.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, one object per line.")]

_PATIENCE_S = 10.0  # a person waits for the answer; a restart of the broker's parts takes less
NOTICE_S = 1.5  # nobody looks at a silent terminal for longer than two seconds


def find_url(url: str | None) -> str:
    """The broker that a command speaks to. Raises ValueError, OSError."""
    return url or SavedLogins.of_user().latest() or DEFAULT_URL


def read_secret(option: str) -> str:
    """What an option says that should not be on a command line; - is a line of standard input."""
    return sys.stdin.readline().rstrip("\n") if option == "-" else option


@dataclass(frozen=True, slots=True, repr=False)
class Remote:
    """The options that say which broker a command speaks to, and who the caller is."""

    url: UrlOption = None
    token: TokenOption = None
    username: UsernameOption = None
    password: Password = None

    def open_client(
        self,
        account: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        subscription: SubscriptionConfig | None = None,
    ) -> AsyncClient:
        """The client that these options describe.

        A user name wins over a token, and a token over the log-in that was kept for this broker.

        Raises:
            BadParameter: they do not fit together.
            ValueError: the log-in that was kept has ended.
        """
        found, token = find_url(self.url), self.token
        if not (token or self.username or self.password):
            token = _saved_token(found)
        try:
            return AsyncClient(
                found,
                token=None if self.username else token or None,
                username=self.username or None,
                password=self.password or None,
                account=account,
                retry=retry or RetryPolicy(deadline_s=_PATIENCE_S),
                subscription=subscription or SubscriptionConfig(first_deadline_s=_PATIENCE_S),
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """What `work` gives when it is called with a client; says on standard error when that takes long.

        Raises what it raises, and as `open_client`.
        """

        async def run() -> T:
            async with self.open_client() as client, noticed(find_url(self.url)):
                return await work(client)

        return asyncio.run(run())


@asynccontextmanager
async def noticed(url: str) -> AsyncIterator[None]:
    """Says on standard error that a broker is waited for, when the block takes long."""

    async def notice() -> None:
        await asyncio.sleep(NOTICE_S)
        write_notice(f"waiting for {url}")

    task = asyncio.create_task(notice())
    try:
        yield
    finally:
        await cancel_and_wait(task)


def _saved_token(url: str) -> str | None:
    login = SavedLogins.of_user().find(url)
    if login is None:
        return None
    if login.has_ended(now()):
        raise ValueError(
            f"the log-in of {login.username} at {url} has ended; "
            "`broker login` signs in again, `broker logout` forgets it"
        )
    return login.token
