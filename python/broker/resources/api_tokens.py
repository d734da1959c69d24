"""The caller's API tokens: creating, listing and revoking them.

An API token makes no other, so that whoever stole one has nothing left when it is revoked.

`client` tokens are in the hands of the public, so their user makes none. A repeated request with the same
`Idempotency-Key` makes nothing again and gets the first result without the secret: only hashes are stored,
so the secret of a reply that got lost is lost with it.
"""

from pydantic import Field

from broker.clock import to_datetime, to_ms
from broker.domain import permissions
from broker.domain.api_tokens import ApiToken, NewApiToken, build_secret, hash_secret
from broker.domain.audit import Actor
from broker.domain.values import Id, Model, Name, Time
from broker.errors import InvalidRequest
from broker.operations.context import Context
from broker.operations.listing import NoParams
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Result


class NewApiTokenParams(Model):
    """An API token to make."""

    name: Name
    expires: Time | None = Field(
        default=None, description="When the token expires; absent or null means never."
    )


class ApiTokenParams(Model):
    """Which API token."""

    token_id: Id


async def create_api_token(context: Context, params: NewApiTokenParams) -> NewApiToken:
    """Make an API token; see the module's docstring for a repeated request."""
    permissions.require_own_login(context.principal, "makes no API tokens")
    services, principal = context.services, context.principal
    now_ms = services.clock.now_ms()
    if params.expires is not None and to_ms(params.expires) <= now_ms:
        raise InvalidRequest.of_field("expires", "must be in the future")
    made = NewApiToken.model_construct(
        id=services.ids.uuid7(),
        name=params.name,
        created_time=to_datetime(now_ms),
        expires=params.expires,
        token=build_secret(services.ids.secret()),
    )
    assert principal.valid_from_ms is not None, "every token has it"
    await services.api_tokens.add(
        principal.account, Actor.of(principal), principal.valid_from_ms, made, hash_secret(made.token)
    )
    return made


async def list_api_tokens(context: Context, _params: NoParams) -> list[ApiToken]:
    """The caller's API tokens, oldest first."""
    return await context.services.api_tokens.list(context.principal.account, context.subject)


async def delete_api_token(context: Context, params: ApiTokenParams) -> None:
    """Revoke an API token of the caller."""
    by = Actor.of(context.principal)
    await context.services.api_tokens.delete(context.principal.account, by, params.token_id)


def _without_secret(made: Result) -> ApiToken:
    assert isinstance(made, NewApiToken), "what `create_api_token` returns"
    return ApiToken.model_construct(**{name: getattr(made, name) for name in ApiToken.model_fields})


_REVOKED_WITH = "A new password or a lower role of the user revokes all of them."

OPERATIONS = of_resource(
    "Users",
    Operation(
        name="createApiToken",
        summary="Create an API token",
        result=NewApiToken | ApiToken,
        handler=create_api_token,
        route=Route(
            "POST",
            "/users/me/tokens",
            status=201,
            location="/users/me/tokens/{id}",
            description="The reply is the only place where the secret, `token`, is shown; a repeated request"
            " with the same `Idempotency-Key` gets the reply without it. An API token, and a token that came"
            f" from one, makes none (403). {_REVOKED_WITH}",
        ),
        kept=_without_secret,
        example={"name": "Graphics controller", "expires": "2036-07-19T22:00:00.000Z"},
    ),
    Operation(
        name="listApiTokens",
        summary="List the caller's API tokens",
        handler=list_api_tokens,
        is_list=True,
        route=Route("GET", "/users/me/tokens"),
    ),
    Operation(
        name="deleteApiToken",
        summary="Revoke one of the caller's API tokens",
        handler=delete_api_token,
        route=Route(
            "DELETE",
            "/users/me/tokens/{tokenId}",
            status=204,
            description="Within seconds, the token and access tokens obtained with it are refused.",
        ),
        example={"tokenId": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"},
    ),
)
