"""`login`: a user name and a password for an access token (RFC 6749, section 4.3).

Faults are told in the order in which a client author meets them: fields of the wrong type or a missing
`grant_type`, then the client, then the grant, then what this grant lacks, then what nobody knows. As RFC
6749, section 3.2 asks, an empty field counts as an absent one.
"""

from collections.abc import Iterable

from pydantic import ConfigDict, Field

from broker.domain.users import MAX_PASSWORD_CHARACTERS
from broker.domain.values import MAX_NAME_CHARACTERS, Model
from broker.errors import (
    BadCredentials,
    FieldFault,
    InvalidClient,
    InvalidRequest,
    SlowDown,
    Unavailable,
    UnsupportedGrantType,
)
from broker.operations.context import Context
from broker.operations.registry import Operation, Reply, Route

PASSWORD_GRANT = "password"  # noqa: S105 - the name of a grant
_REQUIRED = "is required"


class LoginParams(Model):
    """Body of `POST /token`. Fields of other grants are let through, so that the grant can be refused."""

    model_config = ConfigDict(alias_generator=None, extra="allow")

    grant_type: str | None = Field(default=None, description="`password`.")
    client_id: str | None = Field(default=None, description="Kind of the application; required.")
    username: str | None = Field(default=None, max_length=MAX_NAME_CHARACTERS)
    password: str | None = Field(default=None, max_length=MAX_PASSWORD_CHARACTERS, repr=False)

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
    """Check the request in the module's order, then the password."""
    _check_request(params, context.services.settings.client_ids)
    username, password = _required_credentials(params)
    _refuse_unknown(params.model_extra or {})
    token = await context.services.auth.log_in(context.principal.account, username, password, context.address)
    answer = TokenResponse(access_token=token.text, expires_in=token.expires_in_s)
    return Reply(answer, {"Cache-Control": "no-store", "Pragma": "no-cache"})


def _check_request(params: LoginParams, client_ids: Iterable[str]) -> None:
    if not params.grant_type:
        raise InvalidRequest.of_field("grant_type", _REQUIRED)
    if not params.client_id:
        raise InvalidClient("client_id: is required", faults=[FieldFault("client_id", _REQUIRED)])
    if params.client_id not in client_ids:
        fault = FieldFault("client_id", "is not one that this server accepts")
        raise InvalidClient(f"{fault.field}: {fault.message}", faults=[fault])
    if params.grant_type != PASSWORD_GRANT:
        fault = FieldFault("grant_type", f"must be {PASSWORD_GRANT}")
        raise UnsupportedGrantType(f"{fault.field}: {fault.message}", faults=[fault])


def _required_credentials(params: LoginParams) -> tuple[str, str]:
    if params.username and params.password:
        return params.username, params.password
    missing = [name for name in ("username", "password") if not getattr(params, name)]
    faults = [FieldFault(name, _REQUIRED) for name in missing]
    raise InvalidRequest(f"{faults[0].field}: {faults[0].message}", faults=faults)


def _refuse_unknown(fields: Iterable[str]) -> None:
    faults = [FieldFault(name, "is not a field of this request") for name in fields]
    if faults:
        raise InvalidRequest(f"{faults[0].field}: {faults[0].message}", faults=faults)


LOGIN = Operation(
    name="login",
    summary="Log in",
    params=LoginParams,
    result=TokenResponse,
    handler=log_in,
    audience=None,
    route=Route(
        "POST",
        "/token",
        form=True,
        description="Exchanges a user name and a password for an access token. After 10 failed tries a minute"
        " for one user name, or 30 from one address, every try is refused for a while, the right one too.",
    ),
    errors=(InvalidRequest, InvalidClient, UnsupportedGrantType, BadCredentials, SlowDown, Unavailable),
    example={
        "grant_type": "password",
        "client_id": "WebProducerDashboard",
        "username": "producer",
        "password": "…",
    },
    tag="Authentication",
)

OPERATIONS = (LOGIN,)
