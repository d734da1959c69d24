"""What the doors and the operations ask of authentication."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.domain.users import Principal, User

RevocationCallback = Callable[[str, str, int], None]
"""Called with (account, subject, valid_from_ms): tokens issued for an earlier state are invalid."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An access token as it is handed out, and its lifetime in seconds."""

    text: str = field(repr=False)
    expires_in_s: int


class Auth(Protocol):
    """Tokens in, principals out. Verifying a known token costs no query."""

    async def authenticate(self, account: str, token: str, address: str = "") -> Principal:
        """The principal of an access token or an API token, with the user's present role and projects.

        An API token counts as an access token that it was exchanged for, and ends at its own end only.
        A user's changes are seen within 5 seconds, here and in every other process. While the database is
        away, tokens that this process has seen before go on working.

        Args:
            address: where the token came from. API tokens that are not found are counted for it; an empty
                one is that of no peer and has no limit.

        Raises:
            Unauthenticated: malformed, expired, revoked, of another account or signed by an unknown key.
            SlowDown: an API token that is new to this process, after too many from its address that are
                unknown; `retry_after_s` is when the next one is looked for.
            Unavailable: the token is new to this process and the database is away, or too many wait.
        """

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the principal's token has been revoked since it was verified; a look-up in memory.

        A principal without a token is never revoked.
        """

    def on_revocation(self, callback: RevocationCallback) -> None:
        """Call `callback(account, subject, valid_from_ms)` once for every revocation from now on.

        It is called on the event loop and must not block. It is called before the first token that the
        user got afterwards is accepted here, so that ending the user's sessions ends only the earlier ones.
        """

    def on_key_revocation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(key_id)` once for every signing key that is revoked from now on.

        It is called on the event loop and must not block; tokens of the key are refused already.
        """

    def on_change(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(account, subject)` when a user whose token is known here got other rights.

        Its tokens stay valid; what it may read has to be asked again.
        """

    async def log_in(self, account: str, username: str, password: str, address: str) -> AccessToken:
        """Check a user name and a password, and issue a token.

        An unknown user takes as long as a wrong password. Failed tries are counted for the name and for the
        address over all processes; over the limit the right password is refused too.

        Raises:
            BadCredentials: the user is unknown or the password wrong.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the database is away, or too many log-ins wait for a processor.
        """

    async def exchange(self, account: str, api_token: str, address: str) -> AccessToken:
        """Issue an access token for an API token; it ends with the API token at the latest.

        Failed tries are counted for the text and for the address, as those of `log_in` are.

        Raises:
            BadCredentials: the API token is unknown, revoked or expired.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the database is away.
        """

    async def log_in_by_identity(self, account: str, token: str, address: str) -> AccessToken:
        """Issue an access token for the token of one of the account's identity providers.

        Failed tries are counted for the text and for the address, as those of `log_in` are.

        Raises:
            BadCredentials: the token is not accepted, or no one user is meant by it.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the provider's keys or the database cannot be read.
        """

    async def issue(self, account: str, user: User, valid_from_ms: int) -> AccessToken:
        """A signed access token that lives for the configured lifetime.

        Args:
            valid_from_ms: of the user's credentials as they were when they were checked. A password that
                changed meanwhile makes this token invalid from its birth.
        """

    async def hash_password(self, password: str, salt: bytes | None = None) -> str:
        """What is stored of a new password; with a `salt` of 16 bytes the same for the same password.

        Raises Unavailable when too many wait for a processor.
        """

    async def jwks(self) -> dict[str, Any]:
        """The public keys of every token that can still be valid (RFC 7517, RFC 8037)."""
