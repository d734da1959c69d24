"""`broker account visitors`: who counts as a visitor of an account's polls."""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from broker.auth.signed_visitors import read_key
from broker.cli.administration import DatabaseOptions, open_database
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption
from broker.domain.audit import Actor
from broker.settings import Settings
from broker.storage.visitor_rules import StoredRules, VisitorRules
from broker.voting.rules import Visitors

_KEYS = 2  # the newest, and the one before while servers are given the new one
_SECRET_BYTES = 32


def visitors(
    name: Annotated[str, typer.Argument(help="Lowercase letters, digits and hyphens.")],
    require: Annotated[
        Visitors | None,
        typer.Option(
            help="What polls require that say nothing themselves: any visitors, those that the broker has"
            " issued, or those that the account's server has signed."
        ),
    ] = None,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Make a shared secret (HS256), and show it once.")
    ] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(help="PEM file with a public key: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA)."),
    ] = None,
    drop_old: Annotated[
        bool, typer.Option("--drop-old", help="Accept only the newest key from now on.")
    ] = False,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Accept no key.")] = False,
    drop_issued: Annotated[
        bool, typer.Option("--drop-issued", help="Accept no visitor that the broker has issued before.")
    ] = False,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Show or set who counts as a visitor of polls. A new key leaves the one before valid."""
    if (public_key is not None) + new_secret + drop_old + no_keys > 1:
        raise typer.BadParameter("give one of --new-secret, --public-key, --drop-old and --no-keys")
    made = secrets.token_urlsafe(_SECRET_BYTES) if new_secret else None
    added = made if public_key is None else _public_key(public_key)
    most = 0 if no_keys else 1 if drop_old else _KEYS

    def change(rules: StoredRules) -> StoredRules:
        keys = rules.keys if added is None else (added, *rules.keys)
        return StoredRules(
            keys[:most], None if drop_issued else rules.secret, rules.required if require is None else require
        )

    settings = database.settings()
    rules = asyncio.run(_change(settings, name, change))
    algorithms = [read_key(key).algorithm for key in rules.keys]
    if json:
        told = {"visitors": rules.required, "visitorKeys": algorithms}
        write_json(told | ({} if made is None else {"secret": made}))
        return
    write_line(f"visitors: {rules.required}")
    write_line(f"keys for visitors, newest first: {', '.join(algorithms) or 'none'}")
    if made is not None:
        write_line(f"secret, which is not shown again: {made}")


async def _change(
    settings: Settings, account: str, change: Callable[[StoredRules], StoredRules]
) -> StoredRules:
    async with open_database(settings) as database:
        return await VisitorRules(database).change(account, change, Actor.operator())


def _public_key(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
        if read_key(text).algorithm == "HS256":
            raise ValueError("must be a public key as PEM")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{path}: {reason}") from None
    return text
