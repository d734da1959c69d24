"""`broker account show`, and how `broker account set --quota` is read."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from broker.auth.administration import Administration
from broker.cli.account_options import options_lines, options_wire
from broker.cli.administration import DatabaseOptions
from broker.cli.output import to_wire, write_json, write_line
from broker.cli.remote import JsonOption
from broker.domain.quotas import QuotaName
from broker.storage.account_options import AccountOptions
from broker.storage.account_quotas import QuotaUse
from broker.storage.accounts import Account

QuotaOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        help="programs=NUMBER, events=NUMBER a second, storage=BYTES of stored values, or images=NUMBER"
        " made a minute; NAME= lifts a quota. Can be repeated.",
    ),
]
_MOST = {
    QuotaName.PROGRAMS: 1_000_000_000,
    QuotaName.EVENTS: 1_000_000,
    QuotaName.STORAGE: 1 << 50,
    QuotaName.IMAGES: 10_000_000,
}
_UNITS = {
    QuotaName.PROGRAMS: "programs",
    QuotaName.EVENTS: "events a second",
    QuotaName.STORAGE: "bytes in storage",
    QuotaName.IMAGES: "images made a minute",
}


def show(
    name: Annotated[str, typer.Argument(help="Lowercase letters, digits and hyphens.")],
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Show an account with all that was set for it, and what it uses of its quotas."""

    async def read(administration: Administration) -> tuple[Account, QuotaUse, AccountOptions]:
        account = await administration.get_account(name)
        options = await administration.read_options(name)
        return account, await administration.get_use(name), options[name]

    account, use, options = database.administer(read)
    used = {QuotaName.PROGRAMS: use.programs, QuotaName.STORAGE: use.storage}
    quotas = {each: getattr(account.quotas, each.value) for each in QuotaName}
    if json:
        write_json(
            {
                "name": account.name,
                "origins": None if account.origins is None else [*account.origins],
                "createdTime": to_wire(account.created_time),
                "keepEventsDays": account.keep_events_days,
                "quotas": {each.value: quota for each, quota in quotas.items()},
                "used": {each.value: number for each, number in used.items()},
                **options_wire(options),
            }
        )
        return
    origins = "any origin" if account.origins is None else ", ".join(account.origins) or "no origin"
    write_line(f"{account.name}  ({origins})")
    kept = "all" if account.keep_events_days is None else f"for {account.keep_events_days} days"
    write_line(f"events are kept: {kept}")
    for each, quota in quotas.items():
        bound = "no quota" if quota is None else f"at most {quota}"
        present = f"{used[each]}, " if each in used else ""
        write_line(f"{_UNITS[each]}: {present}{bound}")
    for line in options_lines(options):
        write_line(line)


def parse_quotas(texts: Sequence[str]) -> dict[QuotaName, int | None]:
    """What `--quota` says; None lifts a quota. Raises BadParameter."""
    quotas: dict[QuotaName, Any] = {}
    for text in texts:
        name, is_set, number = text.partition("=")
        if not is_set or name not in set(QuotaName):
            names = ", ".join(QuotaName)
            raise typer.BadParameter(f"{text}: --quota must be NAME=NUMBER or NAME=, with a NAME of {names}")
        quota = QuotaName(name)
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        if number and not (is_number and 1 <= int(number) <= _MOST[quota]):
            raise typer.BadParameter(f"{text}: the number of --quota must be from 1 to {_MOST[quota]}")
        quotas[quota] = int(number) if number else None
    return quotas
