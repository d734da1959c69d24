"""Application revisions: versions of the content of a project's application, drafts and published ones.

A revision is a draft until it is published, and published it stays, with the content that it then had.
"""

import re
import unicodedata
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field

from broker.domain.projects import DescriptionText
from broker.domain.values import FreeObject, Id, Model, Name, Time
from broker.errors import Conflict

MAX_VERSION_CHARACTERS = 128
LATEST = "latest"  # a path of its own

_VERSION = re.compile(rf"[A-Za-z0-9._~:+-]{{1,{MAX_VERSION_CHARACTERS}}}")
_SOURCE_FIELDS = ("id", "name", "type")
# Without case and separators. A key that has one of them anywhere is one: `accessToken`, `X-Api-Key`,
# `secretKey`, `passwordHash`. What is removed without need is missed and renamed; what is shown is lost.
_CREDENTIAL = re.compile(
    "passw(?:or)?d|pwd|passphrase|secret|token|credential|authori[sz]ation|basicauth|jwt|connectionstring"
    "|(?:api|private|access|signing|encryption|subscription|account|license|licence)key"
)
# And these as a whole name; `author` and `cookieBanner` are none.
_WHOLE = frozenset({"auth", "bearer", "cookie", "cookies", "dsn", "sessionid"})
# Unless it goes on like this: then it is about a credential, or another word.
_ABOUT = (
    "ary", "ariat", "ive", "ization", "isation", "ize", "ise", "less",  # secretary, tokenizer, passwordless
    "color", "colour", "count", "enabled", "endpoint", "error", "expires", "expiry", "field", "form", "hint",
    "icon", "input", "label", "length", "lifetime", "limit", "max", "message", "min", "name", "page",
    "placeholder", "policy", "prompt", "protected", "required", "rule", "screen", "size", "strength", "style",
    "title", "type", "uri", "url", "usage", "visible",
)  # fmt: skip
# Of several tokens only these: applications have `designTokens`, and models `maxTokens`.
_TOKENS_OF = (
    "access", "api", "auth", "authentication", "bearer", "client", "csrf", "device", "id", "jwt", "login",
    "oauth", "push", "refresh", "security", "session", "user",
)  # fmt: skip
_SEPARATORS = re.compile(r"[\W_]+")
_KEYS = 10_000  # remembered at a time
_REMEMBERED_CHARACTERS = 64


class RevisionStatus(StrEnum):
    """Whether end users may see a revision."""

    DRAFT = "draft"
    PUBLISHED = "published"


def _check_version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise ValueError(f"must be 1 to {MAX_VERSION_CHARACTERS} characters of A-Z a-z 0-9 . _ ~ : + -")
    if value in (LATEST, ".", ".."):
        raise ValueError("is a reserved word")
    return value


VersionField = Annotated[
    str,
    AfterValidator(_check_version),
    Field(json_schema_extra={"pattern": f"^{_VERSION.pattern}$", "not": {"enum": [LATEST, ".", ".."]}}),
]
StatusField = Annotated[RevisionStatus, Field(strict=False)]


class RevisionFields(Model):
    """What of a revision can be changed, and patched."""

    title: Name | None = None
    description: DescriptionText | None = None
    version: VersionField
    status: StatusField
    content: FreeObject = Field(default_factory=dict)


WRITABLE = frozenset(RevisionFields.model_fields)


class Revision(Model):
    """A revision as it is stored and answered. `createdBy` and `updatedBy` are ids of users."""

    id: Id
    project_id: Id
    title: Name | None = None
    description: DescriptionText | None = None
    version: VersionField
    status: StatusField
    content: FreeObject
    created_by: str
    updated_by: str
    created_time: Time
    updated_time: Time


class LiveRevision(Model):
    """What end users see of a published revision: no credentials, no addresses of data sources, no users."""

    id: Id
    project_id: Id
    title: Name | None = None
    description: DescriptionText | None = None
    version: VersionField
    status: StatusField
    content: FreeObject
    created_time: Time
    updated_time: Time

    @classmethod
    def of(cls, revision: Revision) -> "LiveRevision":
        """The live view of a revision."""
        fields = {name: getattr(revision, name) for name in cls.model_fields}
        return cls.model_construct(**fields | {"content": live_content(revision.content)})


def require_change(before: Revision, after: Revision) -> None:
    """Raise Conflict when a published revision would become a draft or get other content."""
    if before.status is RevisionStatus.DRAFT:
        return
    if after.status is RevisionStatus.DRAFT:
        raise Conflict("a published revision cannot become a draft again")
    if _canonical(before.content) != _canonical(after.content):
        raise Conflict("the content of a published revision cannot change; create another revision")


def live_content(content: dict[str, Any]) -> dict[str, Any]:
    """Content as end users may see it.

    Data sources keep their `id`, `name` and `type`; whatever is named like a credential goes, at any depth.
    """
    public: dict[str, Any] = _without_credentials(content)
    if "dataSources" in content:
        sources = content["dataSources"]
        known = (
            [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
        )
        public["dataSources"] = [
            {
                name: source[name]
                for name in _SOURCE_FIELDS
                if name in source and not isinstance(source[name], dict | list)
            }
            for source in known
        ]
    return public


def is_credential(key: str) -> bool:
    """Whether a key is named like a credential, in any case and with any separators."""
    return _is_credential(key) if len(key) <= _REMEMBERED_CHARACTERS else _is_credential.__wrapped__(key)


@lru_cache(_KEYS)
def _is_credential(key: str) -> bool:
    # Letter by letter: of a long run of marks the whole would be normalised in quadratic time.
    plain = key if key.isascii() else "".join(unicodedata.normalize("NFKC", letter) for letter in key)
    name = _SEPARATORS.sub("", plain.casefold())
    return name in _WHOLE or any(_names_one(name, found) for found in _CREDENTIAL.finditer(name))


def _names_one(name: str, found: re.Match[str]) -> bool:
    """Whether a credential's word within a name without separators means a credential."""
    end = found.end()
    is_plural = name.startswith("s", end)
    if name.startswith(_ABOUT, end) or (is_plural and name.startswith(_ABOUT, end + 1)):
        return False
    if found[0] == "token" and is_plural:
        return found.start() == 0 or name.endswith(_TOKENS_OF, 0, found.start())
    return True


def _without_credentials(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_credentials(inner) for key, inner in value.items() if not is_credential(key)}
    if isinstance(value, list):
        return [_without_credentials(inner) for inner in value]
    return value


def _canonical(content: dict[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
