"""The audit log's entries: who administered what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.domain.users import Principal

OPERATOR = "operator"


class Actor(NamedTuple):
    """Who made a change: a user, or with None for the id whoever holds the command line."""

    user_id: str | None
    name: str

    @classmethod
    def of(cls, principal: Principal) -> "Actor":
        """The user of a token."""
        return cls(principal.subject, principal.username or principal.subject or "")

    @classmethod
    def operator(cls) -> "Actor":
        """Whoever administers by the command line, above every account."""
        return cls(None, OPERATOR)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative change.

    Attributes:
        action: what was done, `<type>.<verb in the past>`, such as `user.created`.
        target_id: of what; stays readable after the target is gone.
        details: what changed, JSON; never a secret, so of passwords and tokens only that they changed.
    """

    actor: Actor
    action: str
    target_id: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target_type(self) -> str:
        """The kind of resource, the part of the action before the dot."""
        return self.action.partition(".")[0]
