"""`broker account`."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from broker.auth.administration import Administration
from broker.cli.account_options import options_lines, options_wire
from broker.cli.account_quotas import QuotaOptions, parse_quotas, show
from broker.cli.administration import DatabaseOptions, open_database
from broker.cli.options import Commands
from broker.cli.output import to_wire, write_json, write_line
from broker.cli.remote import JsonOption
from broker.cli.visitor_rules import visitors
from broker.domain.identities import IdentityProvider
from broker.domain.users import Role
from broker.images.administration import Changed, RuleChange, Signing, change_rules
from broker.settings import Settings
from broker.storage.account_options import AccountOptions
from broker.storage.accounts import Account
from broker.storage.analytics import MatomoAccess
from broker.storage.event_retention import MOST_DAYS

app = Commands("Create and change accounts in the database.")

app.command("visitors")(visitors)
app.command("show")(show)

AccountName = Annotated[str, typer.Argument(help="Lowercase letters, digits and hyphens.")]
Origins = Annotated[
    list[str] | None, typer.Option("--origin", help="Web origin whose pages may connect; can be repeated.")
]


@app.command()
def add(
    name: AccountName, origin: Origins = None, *, database: DatabaseOptions, json: JsonOption = False
) -> None:
    """Create an account. Without --origin, pages of any origin may connect."""
    origins = None if origin is None else tuple(origin)
    account = database.administer(lambda admin: admin.add_account(name, origins))
    _show(account, json)


@app.command("list")
def list_(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """List all accounts with what was set for them."""

    async def read(administration: Administration) -> tuple[list[Account], dict[str, AccountOptions]]:
        accounts = await administration.list_accounts()
        return accounts, await administration.read_options()

    accounts, options = database.administer(read)
    for account in accounts:
        # Each has them: no account is ever removed.
        _show(account, json, options[account.name])


@app.command("set")
def set_(
    name: AccountName,
    origin: Origins = None,
    any_origin: Annotated[
        bool, typer.Option("--any-origin", help="Allow pages of any origin to connect.")
    ] = False,
    no_origin: Annotated[bool, typer.Option("--no-origin", help="Allow no page to connect.")] = False,
    matomo_url: Annotated[str | None, typer.Option(help="URL of the account's Matomo.")] = None,
    matomo_token_file: Annotated[
        Path | None, typer.Option(help="File with the token of a superuser; - is standard input.")
    ] = None,
    matomo_reader: Annotated[str | None, typer.Option(help="Matomo user that reads reports.")] = None,
    matomo_reader_token_file: Annotated[
        Path | None, typer.Option(help="File with the token of that user.")
    ] = None,
    no_matomo: Annotated[
        bool, typer.Option("--no-matomo", help="Remove the account's Matomo configuration.")
    ] = False,
    image_host: Annotated[
        list[str] | None,
        typer.Option(help="Host that images may come from; *.HOST allows its subdomains. Can be repeated."),
    ] = None,
    any_image_host: Annotated[
        bool, typer.Option("--any-image-host", help="Allow images from any public host.")
    ] = False,
    image_preset: Annotated[
        list[str] | None, typer.Option(help="NAME=OPTIONS defines preset=NAME; NAME= removes it.")
    ] = None,
    image_signing: Annotated[
        str | None, typer.Option(help="Require signed image URLs: on, off, or rotate for a new key.")
    ] = None,
    keep_events: Annotated[
        int | None, typer.Option(help="Days after which events are deleted.", min=1, max=MOST_DAYS)
    ] = None,
    keep_all_events: Annotated[
        bool, typer.Option("--keep-all-events", help="Delete no event by its age, which is the default.")
    ] = False,
    quota: QuotaOptions = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Set an account's origins, its Matomo, its rules for images, its quotas, or how long it keeps events."""
    # Which of the five groups of options is given; those of one group exclude each other.
    origin_options = (origin is not None) + any_origin + no_origin
    matomo_options = (matomo_url, matomo_token_file, matomo_reader, matomo_reader_token_file)
    has_matomo = any(option is not None for option in matomo_options)
    rules = _image_rules(image_host, any_image_host, image_preset, image_signing)
    keep_options = (keep_events is not None) + keep_all_events
    quotas = parse_quotas(quota or ())
    is_of_account = bool(origin_options or has_matomo or no_matomo or keep_options or quotas)
    is_asked = is_of_account or rules != RuleChange()
    if origin_options > 1 or (has_matomo and no_matomo) or keep_options > 1 or not is_asked:
        raise typer.BadParameter(
            "give either --origin, --any-origin or --no-origin, or the --matomo options or --no-matomo,"
            " or the --image options, or either --keep-events or --keep-all-events, or --quota"
        )
    # The change, in one connection to the database.
    matomo = _matomo(matomo_url, matomo_token_file, matomo_reader, matomo_reader_token_file)
    origins = None if any_origin else tuple(origin or ())

    async def change(administration: Administration) -> Account:
        if has_matomo or no_matomo:
            await administration.set_matomo(name, matomo)
        if keep_options:
            await administration.set_retention(name, keep_events)
        if quotas:
            await administration.set_quotas(name, quotas)
        if origin_options:
            return await administration.set_origins(name, origins)
        return await administration.get_account(name)

    if is_of_account:
        _show(database.administer(change), json)
    if rules != RuleChange():
        _show_rules(asyncio.run(_change_rules(database.settings(), name, rules)), json)


@app.command("trust")
def trust(
    name: AccountName,
    issuer: Annotated[str, typer.Argument(help="The identity provider's `iss`.")],
    audience: Annotated[list[str], typer.Option("--audience", help="Accepted `aud`; can be repeated.")],
    jwks_url: Annotated[str, typer.Option("--jwks-url", help="URL of the provider's keys.")],
    role_claim: Annotated[
        str | None, typer.Option("--role-claim", help="Claim that determines the role.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="VALUE=ROLE for a value of the claim; can be repeated.")
    ] = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Accept tokens of an identity provider for log-in to an account; again to replace the provider."""
    roles = dict(_role(text) for text in role or ())
    provider = database.administer(
        lambda admin: admin.set_provider(name, issuer, tuple(audience), jwks_url, role_claim, roles),
    )
    _show_provider(provider, json)


@app.command("trusted")
def trusted(name: AccountName, *, database: DatabaseOptions, json: JsonOption = False) -> None:
    """List the identity providers of an account."""
    for provider in database.administer(lambda admin: admin.list_providers(name)):
        _show_provider(provider, json)


@app.command("distrust")
def distrust(
    name: AccountName,
    issuer: Annotated[str, typer.Argument(help="The issuer given to `trust`.")],
    *,
    database: DatabaseOptions,
) -> None:
    """Stop accepting an identity provider's tokens."""
    database.administer(lambda admin: admin.remove_provider(name, issuer))


def _matomo(
    url: str | None, token_file: Path | None, reader: str | None, reader_token_file: Path | None
) -> MatomoAccess | None:
    """What the options say; tokens come from files, so that no list of processes shows them."""
    if url is None and token_file is None and reader is None and reader_token_file is None:
        return None
    if url is None or token_file is None or reader is None or reader_token_file is None:
        raise typer.BadParameter(
            "--matomo-url, --matomo-token-file, --matomo-reader and --matomo-reader-token-file go together"
        )
    return MatomoAccess(url.rstrip("/"), _secret(token_file), reader, _secret(reader_token_file))


def _image_rules(
    hosts: list[str] | None, any_host: bool, presets: list[str] | None, signing: str | None
) -> RuleChange:
    if hosts and any_host:
        raise typer.BadParameter("give either --image-host or --any-image-host")
    if signing is not None and signing not in get_args(Signing):
        raise typer.BadParameter(f"{signing}: --image-signing must be on, off or rotate")
    for preset in presets or ():
        if "=" not in preset:
            raise typer.BadParameter(f"{preset}: --image-preset must be NAME=OPTIONS")
    named = {name: options for name, _, options in (preset.partition("=") for preset in presets or ())}
    known = {word: word for word in get_args(Signing)}
    return RuleChange(
        () if any_host else hosts or None, named or None, None if signing is None else known[signing]
    )


async def _change_rules(settings: Settings, name: str, change: RuleChange) -> Changed:
    async with open_database(settings) as database:
        return await change_rules(database, name, change)


def _show_rules(changed: Changed, json: bool) -> None:
    rules, key = changed.rules, changed.made_key
    if json:
        told = {"hosts": [*rules.hosts], "presets": dict(rules.presets), "signed": bool(rules.signing_keys)}
        write_json({"images": told | ({} if key is None else {"signingKey": key})})
        return
    write_line(f"images from {', '.join(rules.hosts) or 'any public host'}")
    for preset, options in rules.presets.items():
        write_line(f"preset {preset}: {options}")
    if key is not None:
        write_line(f"signing key, which is not shown again: {key}")
    elif rules.signing_keys:
        write_line("URLs must be signed")


def _secret(path: Path) -> str:
    text = sys.stdin.readline() if str(path) == "-" else path.read_text()
    return text.strip()


def _role(text: str) -> tuple[str, Role]:
    value, _, role = text.rpartition("=")
    if not value or role not in [known.value for known in Role]:
        raise typer.BadParameter(f"{text}: must be VALUE=ROLE, with admin, producer, user or client as ROLE")
    return value, Role(role)


def _show_provider(provider: IdentityProvider, json: bool) -> None:
    if json:
        wire = {
            "issuer": provider.issuer,
            "audiences": [*provider.audiences],
            "jwksUrl": provider.jwks_url,
            "roleClaim": provider.role_claim,
            "roles": dict(provider.roles),
        }
        write_json(wire)
        return
    write_line(f"{provider.issuer}  (for {', '.join(provider.audiences)}; keys at {provider.jwks_url})")


def _show(account: Account, json: bool, options: AccountOptions | None = None) -> None:
    if json:
        listed = None if account.origins is None else [*account.origins]
        wire = {"name": account.name, "origins": listed, "createdTime": to_wire(account.created_time)}
        write_json(wire if options is None else wire | options_wire(options))
        return
    origins = "any origin" if account.origins is None else ", ".join(account.origins) or "no origin"
    write_line(f"{account.name}  ({origins})")
    for line in [] if options is None else options_lines(options):
        write_line(f"  {line}")
