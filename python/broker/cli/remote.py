"""The options by which a command finds a running broker and logs in."""

from typing import Annotated

import typer

from broker.client import AsyncClient, RetryPolicy
from broker.client.subscription import SubscriptionConfig

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="BROKER_URL", help="URL of the broker; the first label of the host is the account."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="BROKER_TOKEN", help="Access token or API token.", show_default=False),
]
Username = Annotated[
    str | None,
    typer.Option(
        "--username", envvar="BROKER_USERNAME", help="User name to log in with.", show_default=False
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="BROKER_PASSWORD",
        help="Password; prefer the environment variable.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object per line.")]

DEFAULT_URL = "http://localhost:8000"
_PATIENCE_S = 10.0  # a person waits for the answer; a restart of the broker's parts takes less


def open_client(
    url: str, token: str | None, username: str | None, password: str | None, account: str | None = None
) -> AsyncClient:
    """The client that these options describe; a user name wins over a token of the environment.

    Raises:
        BadParameter: they do not fit together.
    """
    try:
        return AsyncClient(
            url,
            token=None if username else token or None,
            username=username or None,
            password=password or None,
            account=account,
            retry=RetryPolicy(deadline_s=_PATIENCE_S),
            subscription=SubscriptionConfig(first_deadline_s=_PATIENCE_S),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
