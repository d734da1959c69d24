"""The first start: an account, and an admin who can make everybody else."""

from dataclasses import dataclass, field

from broker.auth.membership import build_user
from broker.auth.passwords import Passwords
from broker.clock import Clock
from broker.domain.audit import Actor, AuditEntry
from broker.domain.users import Role
from broker.ids import IdSource
from broker.storage.accounts import Accounts
from broker.storage.database import Database
from broker.storage.users import Users

FIRST_USERNAME = "admin"


@dataclass(frozen=True, slots=True)
class FirstAccount:
    """What the first start made.

    Attributes:
        created: whether this call made the admin; false at every later start.
        made_up_password: the admin's password if it was made up by this call. It is told once, never again.
    """

    account: str
    username: str
    created: bool
    made_up_password: str | None = field(default=None, repr=False)


async def ensure_first_account(
    database: Database, clock: Clock, ids: IdSource, *, account: str, admin_password: str = ""
) -> FirstAccount:
    """Make the account, and its user `admin` if the account has no user at all.

    Safe to run at every start and in several processes at once: one of them makes the admin, and a password
    that is there already is never changed.

    Args:
        admin_password: of the operator's choice, 1 to 1,000 characters; empty makes one up.

    Raises:
        InvalidRequest: the account's name or the password cannot be one.
        Unavailable: the database is away.
    """
    await Accounts(database, clock).ensure(account)
    users = Users(database)
    if await users.list(account):
        return FirstAccount(account, FIRST_USERNAME, created=False)
    password = admin_password or ids.secret()
    passwords = Passwords()
    try:
        password_hash = await passwords.hash(password)
    finally:
        passwords.close()
    admin = build_user(clock, ids, username=FIRST_USERNAME, role=Role.ADMIN)
    async with users.editing(account) as edit:
        if await edit.count():  # another process was faster
            return FirstAccount(account, FIRST_USERNAME, created=False)
        await edit.insert(admin, password_hash)
        details = {"username": admin.username, "role": admin.role}
        await edit.record(AuditEntry(Actor.operator(), "user.created", admin.id, details))
    return FirstAccount(account, FIRST_USERNAME, True, None if admin_password else password)
