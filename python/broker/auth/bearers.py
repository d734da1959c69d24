"""Verifies bearer tokens: access tokens (JWTs) and API tokens.

Whether it is worth anything at the moment is decided by the standing of its user (`broker.auth.standings`),
for both kinds alike.
"""

from dataclasses import dataclass

from broker.auth.tokens import Claims
from broker.domain.users import NO_END_MS
from broker.storage.api_tokens import Holder


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whose token it is and when it ends; the fields are those of `Principal`.

    Attributes:
        token_id: the `jti` of an access token, else the id of the API token.
        expires_ms: exclusive; None for an API token without an end.
    """

    account: str
    subject: str
    token_id: str
    issued_ms: int | None
    expires_ms: int | None
    valid_from_ms: int
    api_token_id: str | None
    key_id: str | None

    @classmethod
    def of_claims(cls, claims: Claims, key_id: str) -> "Bearer":
        """An access token that the key has signed."""
        return cls(
            account=claims.account,
            subject=claims.subject,
            token_id=claims.token_id,
            issued_ms=claims.issued_s * 1000,
            expires_ms=claims.expires_s * 1000,
            valid_from_ms=claims.valid_from_ms,
            api_token_id=claims.api_token_id,
            key_id=key_id,
        )

    @classmethod
    def of_holder(cls, account: str, holder: Holder) -> "Bearer":
        """An API token, which counts as a token that it was exchanged for."""
        return cls(
            account=account,
            subject=holder.user.id,
            token_id=holder.token_id,
            issued_ms=None,
            expires_ms=holder.expires_ms,
            valid_from_ms=holder.valid_from_ms,
            api_token_id=holder.token_id,
            key_id=None,
        )

    @property
    def is_api_token(self) -> bool:
        """Whether it is an API token as it is, whose state of credentials its holder's row says."""
        return self.key_id is None

    @property
    def ends_ms(self) -> int:
        """`expires_ms`, or a time that no clock reaches."""
        return NO_END_MS if self.expires_ms is None else self.expires_ms
