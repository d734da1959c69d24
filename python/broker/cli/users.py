"""`broker user`."""

from typing import Annotated

import typer

from broker.cli.administration import DatabaseOptions, administer
from broker.cli.confirmation import YesOption, confirm
from broker.cli.options import Commands
from broker.cli.output import write_line
from broker.cli.remote import JsonOption, read_secret
from broker.domain.users import Role, User

app = Commands("Create and change users in the database.")

UserArgument = Annotated[str, typer.Argument(help="User name.")]
AccountOption = Annotated[
    str | None, typer.Option("--account", help="Account; the default account if absent.")
]
PasswordOption = Annotated[
    str | None, typer.Option(help="Password; prompted for if absent, - reads a line of standard input.")
]


@app.command()
def add(
    username: UserArgument,
    role: Annotated[Role, typer.Option(help="Role of the user.")],
    password: PasswordOption = None,
    name: Annotated[str | None, typer.Option(help="Full name.")] = None,
    email: Annotated[str | None, typer.Option(help="E-mail address.")] = None,
    account: AccountOption = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Create a user."""
    settings = database.settings(default_account=account)
    secret = read_password(password)
    user = administer(
        settings,
        lambda admin: admin.add_user(
            settings.default_account, username, secret, role, name=name, email=email
        ),
    )
    _show(user, json)


@app.command("list")
def list_(account: AccountOption = None, *, database: DatabaseOptions, json: JsonOption = False) -> None:
    """List the users of an account."""
    settings = database.settings(default_account=account)
    users = administer(settings, lambda admin: admin.list_users(settings.default_account))
    for user in users:
        _show(user, json)


@app.command()
def passwd(
    username: UserArgument,
    password: PasswordOption = None,
    account: AccountOption = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Change a user's password. The user's tokens are revoked, and its API tokens deleted."""
    settings = database.settings(default_account=account)
    secret = read_password(password)
    user = administer(
        settings,
        lambda admin: admin.set_password(settings.default_account, username, secret),
    )
    _show(user, json)


@app.command()
def role(
    username: UserArgument,
    role: Annotated[Role, typer.Argument(help="New role of the user.")],
    account: AccountOption = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Change a user's role. A lower one revokes the user's tokens and deletes its API tokens."""
    settings = database.settings(default_account=account)
    user = administer(settings, lambda admin: admin.set_role(settings.default_account, username, role))
    _show(user, json)


@app.command()
def delete(
    username: UserArgument,
    account: AccountOption = None,
    yes: YesOption = False,
    *,
    database: DatabaseOptions,
) -> None:
    """Delete a user. The user's tokens are revoked."""
    settings = database.settings(default_account=account)
    confirm(f"Delete the user {username} of the account {settings.default_account}?", yes)
    administer(settings, lambda admin: admin.delete_user(settings.default_account, username))
    write_line(f"{username} is deleted")


def read_password(option: str | None) -> str:
    """The password that an option means: itself, a line of standard input, or typed twice unseen."""
    if option is None:
        typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    return read_secret(option)


def _show(user: User, json: bool) -> None:
    if json:
        write_line(user.model_dump_json())
        return
    details = "  ".join(text for text in (user.name, user.email) if text)
    write_line(f"{user.username}  {user.role}  {details}".rstrip())
