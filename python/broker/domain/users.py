"""Users, their roles, and the principal that a request acts as."""

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a user may do at all; see `broker.domain.permissions` for what that means."""

    ADMIN = "admin"
    PRODUCER = "producer"
    CLIENT = "client"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts as, within one account.

    Attributes:
        account: name of the account; nothing of another account can be seen or touched.
        role: None for a caller without a token.
        subject: the user's id, None without a token.
        project_ids: the projects that the user belongs to.
        token_id: the `jti` of the token, for revocation.
        expires_ms: when the token ends, milliseconds since the epoch; None without a token.
    """

    account: str
    role: Role | None = None
    subject: str | None = None
    username: str | None = None
    project_ids: frozenset[str] = field(default_factory=frozenset)
    token_id: str | None = None
    issued_ms: int | None = None
    expires_ms: int | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller came without a token."""
        return self.role is None
