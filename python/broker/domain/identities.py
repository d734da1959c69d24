"""Identity providers of an account, and the identity in their tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker.domain.users import RANKED_ROLES, Role


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """An issuer that an account trusts to say who a caller is.

    Attributes:
        audiences: of which a token must name at least one.
        role_claim: the claim, a text or a list of texts, whose values `roles` maps; None leaves roles alone.
        roles: our role for each value of that claim.
    """

    issuer: str
    audiences: tuple[str, ...]
    jwks_url: str
    role_claim: str | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)

    def role_of(self, values: Iterable[str]) -> Role | None:
        """The highest role that the values stand for; None when they stand for none."""
        mapped = {self.roles[value] for value in values if value in self.roles}
        return next((role for role in RANKED_ROLES if role in mapped), None)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a verified token says. `email` is None unless the issuer has verified it."""

    issuer: str
    subject: str
    email: str | None
    role: Role | None
