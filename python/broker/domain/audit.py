"""The audit log's entries: who administered what.

Administrative are changes of who may do what and of what a project is made of: accounts, identity providers,
users, API tokens, projects and revisions, and the deletion of a program. What a show is made of while it
runs, events and stored values, is not told, and of no change more than names, ids and what changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.domain.users import Principal
from broker.domain.values import Model

OPERATOR = "operator"


class Actor(NamedTuple):
    """Who made a change: a user, or with None for the id the operator or an identity provider."""

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

    @classmethod
    def provider(cls, issuer: str) -> "Actor":
        """An identity provider, by what it writes into tokens."""
        return cls(None, issuer)


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


def changed_fields(before: Model, after: Model, names: Iterable[str]) -> list[str]:
    """Those of the fields `names` whose values differ, by name."""
    return sorted(name for name in names if getattr(before, name) != getattr(after, name))
