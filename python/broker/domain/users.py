"""Users, their roles, and the principal that a request acts as."""

import re
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from broker.domain.values import FIRST_FAULT, MAX_NAME_CHARACTERS, Id, Model, Time

MAX_USERNAME_CHARACTERS = 255
MAX_EMAIL_CHARACTERS = 254  # RFC 5321, section 4.5.3.1.3, less the angle brackets
MIN_PASSWORD_CHARACTERS = 8  # NIST SP 800-63B, section 5.1.1.2
MAX_PASSWORD_CHARACTERS = 1_000
MAX_USER_PROJECTS = 1_000
NO_END_MS = 2**53 - 1  # in milliseconds, 285,000 years; exact in every number that JSON is read into

# What an e-mail field of a web page takes (WHATWG HTML, section 4.10.5.1.5), so that both agree.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]+@{_LABEL}(?:\.{_LABEL})*")


class Role(StrEnum):
    """What a user may do at all; see `broker.domain.permissions` for what that means."""

    ADMIN = "admin"
    PRODUCER = "producer"
    CLIENT = "client"
    USER = "user"


RANKED_ROLES = (Role.ADMIN, Role.PRODUCER, Role.USER, Role.CLIENT)
"""All roles, the highest first: nobody gives a role above their own."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts as, within one account.

    Attributes:
        account: name of the account; nothing of another account can be seen or touched.
        role: None for a caller without a token.
        subject: the user's id, None without a token.
        project_ids: the projects that the user belongs to.
        token_id: the `jti` of the token, or the id of an API token.
        expires_ms: when the token ends, milliseconds since the epoch; None without a token, and of an API
            token without an end.
        valid_from_ms: names the state of the user's credentials that the token was issued for; the token is
            revoked once the user has another. Compared, never read as a time.
        api_token_id: the API token that the token is or was exchanged for; it is revoked with it.
        key_id: the signing key of the token, which is revoked with it; an API token has none.
    """

    account: str
    role: Role | None = None
    subject: str | None = None
    username: str | None = None
    project_ids: frozenset[str] = field(default_factory=frozenset)
    token_id: str | None = None
    issued_ms: int | None = None
    expires_ms: int | None = None
    valid_from_ms: int | None = None
    api_token_id: str | None = None
    key_id: str | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller came without a token."""
        return self.role is None

    @property
    def is_api_token(self) -> bool:
        """Whether an API token was sent as it is, not exchanged for an access token."""
        return self.api_token_id is not None and self.key_id is None

    @property
    def ends_ms(self) -> int:
        """`expires_ms`, or a time that no clock reaches."""
        return NO_END_MS if self.expires_ms is None else self.expires_ms


def normalise_username(value: str) -> str:
    """The one spelling of a user name whose letters can be composed in several ways."""
    return unicodedata.normalize("NFC", value)


def _check_printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must not contain control characters or line breaks")
    return value


def _check_username(value: str) -> str:
    if value != value.strip():
        raise ValueError("must not begin or end with a space")
    return normalise_username(_check_printable(value))


def _check_email(value: str) -> str:
    if not _EMAIL.fullmatch(value):
        raise ValueError("must be an e-mail address")
    return value


# As near as a JSON schema comes to it; the description says the rest.
_CONTROLS = r"\u0000-\u001f\u007f-\u00a0"
_PRINTABLE = {"pattern": f"^[^{_CONTROLS}]*$", "description": "Printable characters."}
_TRIMMED = {
    "pattern": rf"^[^\s{_CONTROLS}]([^{_CONTROLS}]*[^\s{_CONTROLS}])?$",
    "description": "Printable characters; no space at either end.",
}
Username = Annotated[
    str,
    Field(min_length=1, max_length=MAX_USERNAME_CHARACTERS),
    AfterValidator(_check_username),
    Field(json_schema_extra=_TRIMMED),
]
PersonName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME_CHARACTERS),
    AfterValidator(_check_printable),
    Field(json_schema_extra=_PRINTABLE),
]
Email = Annotated[
    str,
    Field(max_length=MAX_EMAIL_CHARACTERS),
    AfterValidator(_check_email),
    Field(json_schema_extra={"pattern": f"^{_EMAIL.pattern}$"}),
]
NewPassword = Annotated[str, Field(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_CHARACTERS)]
ProjectIds = Annotated[list[Id], FIRST_FAULT, Field(max_length=MAX_USER_PROJECTS)]


class User(Model):
    """A user as it is stored and answered; nothing of the password is part of it."""

    id: str
    username: Username
    role: Role = Field(strict=False)
    name: PersonName | None = None
    email: Email | None = None
    project_ids: ProjectIds = Field(default_factory=list)
    created_time: Time
    updated_time: Time
