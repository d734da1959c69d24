"""What the doors and the operations ask of authentication."""

from typing import Protocol

from broker.domain.users import Principal, Role


class Auth(Protocol):
    """Tokens in, principals out. Verifying a known token costs no query."""

    async def authenticate(self, account: str, token: str) -> Principal:
        """The principal of an access token.

        Raises:
            Unauthenticated: malformed, expired, revoked, of another account or signed by an unknown key.
        """

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the principal's token has been revoked since it was verified; a look-up in memory."""

    def on_revocation(self, callback: object) -> None:
        """Call `callback(account, subject, valid_from_ms)` for every revocation from now on."""

    async def issue(
        self, account: str, user_id: str, username: str, role: Role, project_ids: frozenset[str]
    ) -> str:
        """A signed access token that lives for the configured lifetime."""
