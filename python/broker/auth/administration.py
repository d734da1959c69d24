"""Administration of accounts, users and maintenance by the command line, directly in the database.

The operator of the database stands above every role, so nobody is asked; the rules of `membership` hold.
Users go by their names here, as a person types them. Input is checked as the operations check it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from broker.auth import membership
from broker.auth.keys import Keyring, KeyringConfig, KeyStatus
from broker.auth.passwords import PasswordConfig, Passwords
from broker.clock import Clock
from broker.domain.audit import Actor
from broker.domain.identities import IdentityProvider
from broker.domain.maintenance import Maintenance, Message, RetryAfter
from broker.domain.origins import parse_origin
from broker.domain.quotas import QuotaName
from broker.domain.users import Email, NewPassword, PersonName, Role, User, Username
from broker.errors import InvalidRequest, NotFound
from broker.ids import IdSource
from broker.setting_rules import MATOMO_URL
from broker.storage.account_options import AccountOptions, StoredAccountOptions
from broker.storage.account_quotas import AccountQuotas, QuotaUse
from broker.storage.accounts import Account, Accounts
from broker.storage.analytics import Analytics, MatomoAccess
from broker.storage.database import Database
from broker.storage.event_retention import EventRetention
from broker.storage.identity_providers import IdentityProviders
from broker.storage.keys import Keys
from broker.storage.maintenance import MaintenanceModes
from broker.storage.users import Users

_USERNAME: TypeAdapter[str] = TypeAdapter(Username)
_NAME: TypeAdapter[str | None] = TypeAdapter(PersonName | None)
_EMAIL: TypeAdapter[str | None] = TypeAdapter(Email | None)
_PASSWORD: TypeAdapter[str] = TypeAdapter(NewPassword)
_MESSAGE: TypeAdapter[str | None] = TypeAdapter(Message | None)
_RETRY_AFTER: TypeAdapter[int | None] = TypeAdapter(RetryAfter | None)


class Administration:
    """Every method raises `InvalidRequest` naming the field, and `Unavailable` without the database."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        ids: IdSource,
        passwords: PasswordConfig | None = None,
        *,
        token_lifetime_s: int = 3_600,
    ) -> None:
        """Args: token_lifetime_s: as the product has it; says how long keys verify that sign no more."""
        self._accounts = Accounts(database)
        self._options = StoredAccountOptions(database)
        self._users = Users(database)
        self._providers = IdentityProviders(database)
        self._analytics = Analytics(database, clock)
        self._retention = EventRetention(database)
        self._quotas = AccountQuotas(database)
        self._maintenance = MaintenanceModes(database)
        self._keys = Keyring(Keys(database), clock, KeyringConfig(token_lifetime_s))
        self._clock = clock
        self._ids = ids
        self._passwords = Passwords(passwords)

    def close(self) -> None:
        """End the threads that hash passwords. The database stays the caller's."""
        self._passwords.close()

    async def add_account(self, name: str, origins: tuple[str, ...] | None = None) -> Account:
        """Make an account without users; None lets pages of any origin connect. Raises Conflict."""
        return await self._accounts.create(name, _origins(origins), Actor.operator())

    async def list_accounts(self) -> list[Account]:
        """All accounts, by name."""
        return await self._accounts.list()

    async def set_origins(self, name: str, origins: tuple[str, ...] | None) -> Account:
        """Replace an account's allowed origins; None allows any. Raises NotFound."""
        return await self._accounts.set_origins(name, _origins(origins), Actor.operator())

    async def get_account(self, name: str) -> Account:
        """One account. Raises NotFound."""
        return await self._accounts.get(name)

    async def read_options(self, account: str | None = None) -> dict[str, AccountOptions]:
        """What was set for an account, or for each, by its name: image rules and Matomo, without secrets."""
        return await self._options.read(account)

    async def set_retention(self, account: str, days: int | None) -> None:
        """Keep an account's events for so many days; None is for ever. Raises NotFound."""
        await self._retention.set(account, days, Actor.operator())

    async def set_quotas(self, account: str, changes: Mapping[QuotaName, int | None]) -> None:
        """Set some quotas of an account, or lift them with None. Raises NotFound."""
        await self._quotas.set(account, changes, Actor.operator())

    async def get_use(self, account: str) -> QuotaUse:
        """What an account uses of its quotas."""
        return await self._quotas.used(account)

    async def set_matomo(self, account: str, access: MatomoAccess | None) -> None:
        """Give an account a Matomo of its own, or with None none. Raises NotFound."""
        if access is not None:
            if not MATOMO_URL.is_allowed(access.url):
                raise InvalidRequest.of_field("matomo_url", f"must be {MATOMO_URL.allowed}")
            for field in ("token", "reader", "reader_token"):
                text = getattr(access, field)
                if not text or not text.isprintable():
                    raise InvalidRequest.of_field(f"matomo_{field}", "must be a single line of text")
        await self._accounts.get(account)
        await self._analytics.set_access(account, access, Actor.operator())

    async def set_provider(
        self,
        account: str,
        issuer: str,
        audiences: tuple[str, ...],
        jwks_url: str,
        role_claim: str | None = None,
        roles: Mapping[str, Role] | None = None,
    ) -> IdentityProvider:
        """Trust an identity provider, or replace what is known of its issuer. Raises NotFound."""
        if not issuer or not issuer.isprintable():
            raise InvalidRequest.of_field("issuer", "must be the provider's `iss`")
        if not audiences or not all(audiences):
            raise InvalidRequest.of_field(
                "audience", "must be given; tokens of other applications are refused"
            )
        if not jwks_url.startswith(("https://", "http://")):
            raise InvalidRequest.of_field("jwks_url", "must begin with https:// or http://")
        if roles and not role_claim:
            raise InvalidRequest.of_field("role_claim", "must name the claim that determines the role")
        provider = IdentityProvider(issuer, audiences, jwks_url, role_claim, dict(roles or {}))
        await self._providers.put(account, provider, Actor.operator())
        return provider

    async def list_providers(self, account: str) -> list[IdentityProvider]:
        """The identity providers of an account, by issuer. Raises NotFound for the account."""
        await self._accounts.get(account)
        return await self._providers.list(account)

    async def remove_provider(self, account: str, issuer: str) -> None:
        """Trust an identity provider no more; access tokens that were issued go on. Raises NotFound."""
        await self._providers.delete(account, issuer, Actor.operator())

    async def list_keys(self) -> list[KeyStatus]:
        """The signing keys, oldest first; they sign for every account."""
        return await self._keys.list()

    async def rotate_keys(self) -> list[KeyStatus]:
        """Announce a new signing key, which signs a minute later; nobody is logged out. Returns all keys."""
        await self._keys.rotate(Actor.operator())
        return await self._keys.list()

    async def revoke_keys(self, kids: Sequence[str] | None) -> list[KeyStatus]:
        """End keys, or all with None, and every access token that they have signed. Returns all keys.

        Raises NotFound when one does not exist; then none is revoked. A revoked key stays revoked.
        """
        known = {key.kid for key in await self._keys.list()}
        for kid in kids or ():
            if kid not in known:
                raise NotFound(f"there is no key {kid}")
        await self._keys.revoke(sorted(known if kids is None else kids), Actor.operator())
        return await self._keys.list()

    async def find_maintenance(self) -> Maintenance | None:
        """The maintenance that is on; None while changes are accepted."""
        return await self._maintenance.find()

    async def begin_maintenance(
        self, message: str | None = None, retry_after_s: int | None = None
    ) -> Maintenance | None:
        """Have every process refuse changes, or change what refused callers are told. Returns what is on.

        None keeps what they are told already, and is a default where maintenance was off.
        """
        message = _valid("message", _MESSAGE, message)
        retry_after_s = _valid("retry_after", _RETRY_AFTER, retry_after_s)
        await self._maintenance.begin(message, retry_after_s, Actor.operator())
        return await self._maintenance.find()

    async def end_maintenance(self) -> Maintenance | None:
        """Have changes accepted again, if they are not. Returns what is on: nothing."""
        await self._maintenance.end(Actor.operator())
        return await self._maintenance.find()

    async def add_user(
        self,
        account: str,
        username: str,
        password: str,
        role: Role,
        *,
        name: str | None = None,
        email: str | None = None,
    ) -> User:
        """Make a user. Raises NotFound for the account, Conflict when the name is taken."""
        user = membership.build_user(
            self._clock,
            self._ids,
            username=_valid("username", _USERNAME, username),
            role=role,
            name=_valid("name", _NAME, name),
            email=_valid("email", _EMAIL, email),
        )
        password_hash = await self._hash(password)
        return await membership.add_user(self._users, account, user, password_hash, Actor.operator())

    async def list_users(self, account: str) -> list[User]:
        """All users of an account, by name. Raises NotFound for the account."""
        await self._accounts.get(account)
        return await self._users.list(account)

    async def set_password(self, account: str, username: str, password: str) -> User:
        """Give a user another password; its tokens become invalid. Raises NotFound."""
        user = await self._find(account, username)
        password_hash = await self._hash(password)
        return await self._change(account, user, lambda before: before, password_hash)

    async def set_role(self, account: str, username: str, role: Role) -> User:
        """Give a user another role. Raises NotFound, and Conflict for the last admin."""
        user = await self._find(account, username)
        return await self._change(account, user, lambda before: before.model_copy(update={"role": role}))

    async def delete_user(self, account: str, username: str) -> None:
        """Remove a user; its tokens become invalid. Raises NotFound, and Conflict for the last admin."""
        user = await self._find(account, username)
        await membership.remove_user(self._users, account, user.id, Actor.operator())

    async def _find(self, account: str, username: str) -> User:
        await self._accounts.get(account)
        credentials = await self._users.find_credentials(account, username)
        if credentials is None:
            raise NotFound(f"the account {account} has no user of this name")
        return credentials.user

    async def _change(
        self, account: str, user: User, change: membership.Change, password_hash: str | None = None
    ) -> User:
        by = Actor.operator()
        return await membership.change_user(
            self._users, self._clock, account, user.id, change, password_hash, by=by
        )

    async def _hash(self, password: str) -> str:
        return await self._passwords.hash(_valid("password", _PASSWORD, password))


def _origins(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """As browsers send them, each once: the gateways compare texts."""
    if texts is None:
        return None
    origins = []
    for text in texts:
        try:
            origins.append(parse_origin(text))
        except ValueError as error:
            advice = "; --any-origin allows every page" if text == "*" else ""
            raise InvalidRequest.of_field("origin", f"{text!r} {error}{advice}") from None
    return tuple(dict.fromkeys(origins))


def _valid(field: str, adapter: TypeAdapter[Any], value: object) -> Any:
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        raise InvalidRequest.of_field(field, message.removeprefix("Value error, ")) from None
