"""The first start of a database: the schema, the default account, a first admin.

A program of its own, too: it reads `{"dsn": …, "admin_password": …}` from standard input and writes what it
did, or `{"failed": …}`, to standard output.
"""

import asyncio
import sys
from dataclasses import replace

import orjson

from broker.auth.administration import Administration
from broker.deployments.preparation import Prepared
from broker.domain.users import Role
from broker.errors import Conflict, InvalidRequest, Unavailable
from broker.ids import IdSource
from broker.logs import configure_logs
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock
from broker.storage.durability import find_risks
from broker.storage.errors import setup_error
from broker.storage.migrations import migrate

_ADMIN = "admin"
_VERSION = "SHOW server_version"


async def prepare(settings: Settings, dsn: str) -> Prepared:
    """Bring the schema up to date and make the default account and its admin where there are none.

    Safe to run in several processes at once, and again after it was cut off.

    Raises:
        SetupError: the database cannot be reached or used.
        SettingError: the DSN, the name of the account or the first password cannot be used.
    """
    try:
        applied = await migrate(dsn)
        database = await Database.open(dsn, size=1, timeout_s=settings.database_timeout_s)
        try:
            async with database.connection() as connection:
                version = await connection.fetchval(_VERSION)
                risks = await find_risks(connection)
            account = await _ensure_admin(settings, database)
        finally:
            await database.close()
    except Unavailable as error:
        raise setup_error(error) from error
    return Prepared(f"PostgreSQL {version}", applied, account, risks)


async def _ensure_admin(settings: Settings, database: Database) -> str:
    clock = await DatabaseClock.open(database)
    ids = IdSource(clock)
    administration = Administration(database, clock, ids)
    name = settings.default_account
    try:
        await _ensure_account(administration, name)
        if await administration.list_users(name):
            return name
        password = settings.admin_password or ids.secret()
        try:
            await administration.add_user(name, _ADMIN, password, Role.ADMIN)
        except Conflict:
            return name  # another process was first
        except InvalidRequest as error:
            raise SettingError(f"BROKER_ADMIN_PASSWORD: {error.message}") from error
    finally:
        administration.close()
    if settings.admin_password:
        return f"{name}, made with the user {_ADMIN}"
    return f"{name}, made with the user {_ADMIN}, password {password}"


async def _ensure_account(administration: Administration, name: str) -> None:
    try:
        await administration.add_account(name)
    except Conflict:
        return
    except InvalidRequest as error:
        raise SettingError(f"BROKER_DEFAULT_ACCOUNT: {error.message}") from error


def main() -> None:
    """Prepare the database that is named on standard input."""
    settings = Settings.load(refuses_unknown=False)  # those of `broker up`, which refuses them itself
    configure_logs(settings, "up")
    secrets = orjson.loads(sys.stdin.buffer.read())
    try:
        settings = replace(settings, admin_password=secrets["admin_password"])
        told: object = asyncio.run(prepare(settings, secrets["dsn"]))
    except (SetupError, SettingError) as error:
        told = {"failed": str(error)}
    sys.stdout.buffer.write(orjson.dumps(told))


if __name__ == "__main__":
    main()
