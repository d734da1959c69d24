"""`login`: a user name and a password (RFC 6749, section 4.3), an API token, or an identity token.

Faults are told in the order in which a client author meets them: fields of the wrong type or a missing
`grant_type`, then the client, then the grant, then what this grant lacks, then what nobody knows. As RFC
6749, section 3.2 asks, an empty field counts as an absent one.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, Field

from broker.domain.users import MAX_PASSWORD_CHARACTERS
from broker.domain.values import MAX_NAME_CHARACTERS, Model, limited_by
from broker.errors import (
    BadCredentials,
    FieldFault,
    InvalidClient,
    InvalidRequest,
    UnsupportedGrantType,
)
from broker.operations.context import Context
from broker.operations.registry import Effect, Operation, Route
from broker.operations.results import Reply

PASSWORD_GRANT = "password"  # noqa: S105 - the name of a grant
API_TOKEN_GRANT = "api_token"  # noqa: S105 - the name of a grant
IDENTITY_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # RFC 7523, section 2.1
MAX_TOKEN_CHARACTERS = 16 << 10  # ours have 47; longer ones are unknown, not malformed
_FIELDS = {PASSWORD_GRANT: ("username", "password"), API_TOKEN_GRANT: ("token",), IDENTITY_GRANT: ("token",)}
_REQUIRED = "is required"


def _variant(grant: str, *, is_client_required: bool) -> dict[str, Any]:
    """The JSON schema of a grant's body, beside that of the fields: those of other grants are empty."""
    own = _FIELDS[grant]
    foreign = {name for names in _FIELDS.values() for name in names} - set(own)
    return {
        "required": ["grant_type", *(["client_id"] if is_client_required else []), *own],
        "properties": {"grant_type": {"const": grant}}
        | {name: {"type": "string", "minLength": 1} for name in own}
        | ({"client_id": {"type": "string"}} if is_client_required else {})
        | {name: {"maxLength": 0} for name in sorted(foreign)},
    }


class LoginParams(Model):
    """Body of `POST /token`. Fields of other grants are let through, so that the grant can be refused."""

    model_config = ConfigDict(
        alias_generator=None,
        extra="allow",
        json_schema_extra={
            "oneOf": [_variant(grant, is_client_required=grant != IDENTITY_GRANT) for grant in _FIELDS]
        },
    )

    grant_type: str | None = Field(
        default=None, description=f"`password`, `api_token` or `{IDENTITY_GRANT}`."
    )
    client_id: str | None = Field(
        default=None,
        description="Type of the application; required except with an identity token.",
        json_schema_extra=limited_by("client_ids"),
    )
    username: str | None = Field(
        default=None, max_length=MAX_NAME_CHARACTERS, description="For the grant `password`."
    )
    password: str | None = Field(
        default=None, max_length=MAX_PASSWORD_CHARACTERS, repr=False, description="For the grant `password`."
    )
    token: str | None = Field(
        default=None,
        max_length=MAX_TOKEN_CHARACTERS,
        repr=False,
        description="An API token, or an identity token.",
    )

    def __repr__(self) -> str:
        """The fields of other grants may be secrets too."""
        return f"LoginParams(grant_type={self.grant_type!r}, client_id={self.client_id!r})"

    __str__ = __repr__


class TokenResponse(Model):
    """An access token as RFC 6749, section 5.1 has it; `expires_in` is its lifetime in seconds."""

    model_config = ConfigDict(alias_generator=None)

    access_token: str = Field(repr=False)
    token_type: str = "Bearer"  # noqa: S105 - a type of tokens
    expires_in: int


async def log_in(context: Context, params: LoginParams) -> Reply:
    """Check the request in the module's order, then the credentials."""
    auth, account = context.services.auth, context.principal.account
    grant = _check_request(params, context.services.settings.client_ids)
    credentials = _required_credentials(params, _FIELDS[grant])
    _refuse_unknown(params, grant)
    await context.services.login_rate.take(account, context.address)
    if grant == API_TOKEN_GRANT:
        token = await auth.exchange(account, credentials[0], context.address)
    elif grant == IDENTITY_GRANT:
        token = await auth.log_in_by_identity(account, credentials[0], context.address)
    else:
        token = await auth.log_in(account, credentials[0], credentials[1], context.address)
    answer = TokenResponse(access_token=token.text, expires_in=token.expires_in_s)
    return Reply(answer, {"Cache-Control": "no-store", "Pragma": "no-cache"})


def _check_request(params: LoginParams, client_ids: Iterable[str]) -> str:
    """The grant that is asked for."""
    if not params.grant_type:
        raise InvalidRequest.of_field("grant_type", _REQUIRED)
    if not params.client_id and params.grant_type != IDENTITY_GRANT:  # whose audience says as much
        message = f"{_REQUIRED}: the kind of application that logs in, such as {next(iter(client_ids), '')}"
        raise InvalidClient.of_field("client_id", message)
    if params.client_id and params.client_id not in client_ids:
        raise InvalidClient.of_field("client_id", "is not one that this server accepts")
    if params.grant_type not in _FIELDS:
        raise UnsupportedGrantType.of_field("grant_type", f"must be {' or '.join(_FIELDS)}")
    return params.grant_type


def _required_credentials(params: LoginParams, names: tuple[str, ...]) -> tuple[str, ...]:
    faults = [FieldFault(name, _REQUIRED) for name in names if not getattr(params, name)]
    if faults:
        raise InvalidRequest.of_faults(faults)
    return tuple(getattr(params, name) for name in names)


def _refuse_unknown(params: LoginParams, grant: str) -> None:
    foreign = [name for names in _FIELDS.values() for name in names if getattr(params, name)]
    fields = [name for name in foreign if name not in _FIELDS[grant]]
    faults = [
        FieldFault(name, "is not a field of this request") for name in (*fields, *(params.model_extra or {}))
    ]
    if faults:
        raise InvalidRequest.of_faults(faults)


LOGIN = Operation(
    name="login",
    summary="Log in",
    result=TokenResponse,
    handler=log_in,
    own_effect=Effect.NONE,
    route=Route(
        "POST",
        "/token",
        form=True,
        description="Exchanges a user name and a password (`grant_type` `password`), an API token"
        " (`api_token`), or a token of the account's identity provider for an access token that"
        " is valid for {token_lifetime_s} s. After {login_tries_per_user} failed attempts per"
        " minute for one user name or token, or {login_tries_per_address} from one address, all"
        " further attempts are refused for a while, even with the right password. Rate limits:"
        " {login_rate_per_address} log-ins per second per address (burst"
        " {login_burst_per_address}) and {login_rate_per_account} per account (burst"
        " {login_burst_per_account}); 0 is no limit.",
    ),
    errors=(InvalidClient, UnsupportedGrantType, BadCredentials),
    example={
        "grant_type": "password",
        "client_id": "WebProducerDashboard",
        "username": "producer",
        "password": "correct horse battery",
    },
    tag="Authentication",
)

OPERATIONS = (LOGIN,)
