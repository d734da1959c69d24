"""`broker login`, `broker logout` and `broker whoami`."""

import sys
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from broker.cli.output import to_wire, write_json, write_line
from broker.cli.remote import JsonOption, Password, Remote, TokenOption, UrlOption, find_url
from broker.cli.saved_logins import SavedLogin, SavedLogins, now
from broker.client import AsyncClient, User
from broker.client.address import account_of
from broker.client.connection_pool import parse_base_url


def login(
    username: Annotated[
        str | None, typer.Option(envvar="BROKER_USERNAME", help="Prompted for if absent.")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            envvar="BROKER_PASSWORD", help="Prompted for if absent; - reads a line of standard input."
        ),
    ] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Read an API token from standard input and save it.")
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Log in and save the token for other commands.

    The token is saved in your configuration directory, in a file that only you may read. It expires after an
    hour, unless the broker is configured otherwise. An API token lasts until it expires or is revoked.
    """
    if with_token and (username or password):
        raise typer.BadParameter("give either --with-token, or a user name and a password")
    where = find_url(url)
    login, user = _check_token(where) if with_token else _log_in(where, username, password)
    SavedLogins.of_user().keep(where, login)
    if json:
        write_json(_described(user, where, login.expires))
    else:
        write_line(f"logged in at {where} as {user.username} ({user.role})")


def logout(url: UrlOption = None) -> None:
    """Delete the saved log-in of a broker."""
    where = find_url(url)
    if not SavedLogins.of_user().forget(where):
        raise ValueError(f"there is no log-in at {where}")
    write_line(f"logged out of {where}")


def whoami(
    url: UrlOption = None,
    token: TokenOption = None,
    username: Annotated[str | None, typer.Option(envvar="BROKER_USERNAME", help="Log in as.")] = None,
    password: Password = None,
    json: JsonOption = False,
) -> None:
    """Show the current user, role and account, and when the log-in expires."""
    where = find_url(url)
    user = Remote(where, token, username, password).call(lambda client: client.users.get_me())
    kept = None if token or username else SavedLogins.of_user().find(where)
    expires = kept.expires if kept else None
    if json:
        write_json(_described(user, where, expires))
        return
    ends = f", until {expires.astimezone():%Y-%m-%d %H:%M}" if expires else ""
    write_line(f"{user.username} ({user.role}) of {_account(where)} at {where}{ends}")


def _log_in(url: str, username: str | None, password: str | None) -> tuple[SavedLogin, User]:
    name = username or _ask("User name")

    async def work(client: AsyncClient) -> tuple[SavedLogin, User]:
        token = await client.tokens.create()
        expires = now() + timedelta(seconds=token.expires_in_s)
        return SavedLogin(name, token.access_token, expires), await client.users.get_me()

    return Remote(url, None, name, _read_password(password)).call(work)


def _check_token(url: str) -> tuple[SavedLogin, User]:
    secret = sys.stdin.readline().strip()
    if not secret:
        raise typer.BadParameter("--with-token reads a token from standard input, which is empty")
    user = Remote(url, secret).call(lambda client: client.users.get_me())
    return SavedLogin(user.username, secret), user


def _ask(text: str, *, is_secret: bool = False) -> str:
    if not sys.stdin.isatty():
        option = "--password" if is_secret else "--username"
        raise typer.BadParameter(f"{option} is required, because there is no terminal to ask on")
    answer: str = typer.prompt(text, hide_input=is_secret, err=True)
    return answer


def _read_password(given: str | None) -> str:
    if given == "-":
        return sys.stdin.readline().rstrip("\n")
    return given or _ask("Password", is_secret=True)


def _account(url: str) -> str:
    return account_of(parse_base_url(url).host)


def _described(user: User, url: str, expires: datetime | None) -> dict[str, Any]:
    described: dict[str, Any] = to_wire(user)
    return {**described, "account": _account(url), "url": url, "expires": to_wire(expires)}
