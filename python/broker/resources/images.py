"""Images: purging caches, and producing images in advance.

The images themselves are served by an application of their own, see `broker.rest.images`.
"""

from typing import Annotated

from pydantic import Field

from broker.domain.values import FIRST_FAULT, Model
from broker.errors import BrokerError, InvalidRequest, PayloadTooLarge
from broker.fetching.urls import parse_url
from broker.images.purges import source_of
from broker.operations.context import Context
from broker.operations.registry import Effect, Operation, Route, of_resource
from broker.storage.image_purges import ALL

MAX_URL_CHARACTERS = 8_192  # a head of HTTP takes no more
MAX_OPTIONS_CHARACTERS = 200
MAX_IMAGES = 20  # of one request: they may take two seconds each

SourceUrl = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARACTERS)]
OptionsText = Annotated[str, Field(min_length=1, max_length=MAX_OPTIONS_CHARACTERS)]


class PurgeParams(Model):
    """Either the URL of a source, as images name it in `url`, or everything of the account."""

    url: SourceUrl | None = None
    all: bool | None = None


class WarmParams(Model):
    """Sources, and what to make of each; one image for each pair."""

    urls: Annotated[list[SourceUrl], FIRST_FAULT, Field(min_length=1)]
    options: Annotated[
        list[OptionsText] | None,
        FIRST_FAULT,
        Field(min_length=1, description="Options as in the path of an image request; `-` alone when absent."),
    ] = None


class WarmedImage(Model):
    """What a viewer would be answered now."""

    url: str
    options: str
    status: Annotated[int, Field(description="200 if the image is ready.")]
    error: Annotated[str | None, Field(description="Name of the error, null without one.")]
    message: Annotated[str | None, Field(description="What is wrong, for people; null without an error.")]


class WarmedImages(Model):
    """The images, in the order of `urls`, those of one URL in the order of `options`."""

    images: list[WarmedImage]


async def _purge(context: Context, params: PurgeParams) -> None:
    if (params.url is None) == (not params.all):
        raise InvalidRequest.of_field("url", "give either url, or all=true")
    source = ALL if params.url is None else source_of(_checked(params.url, "url"))
    await context.services.image_purges.add(context.principal.account, source)


async def _warm(context: Context, params: WarmParams) -> WarmedImages:
    urls = [_checked(url, f"urls[{place}]") for place, url in enumerate(params.urls)]
    wanted = [(url, options) for url in urls for options in params.options or ["-"]]
    if len(wanted) > MAX_IMAGES:
        raise PayloadTooLarge.of_field("urls", f"must not make over {MAX_IMAGES} images with options")
    made = await context.services.image_warmer.warm(context.principal.account, wanted)
    return WarmedImages(
        images=[
            WarmedImage(url=url, options=options, status=told.status, error=told.error, message=told.message)
            for (url, options), told in zip(wanted, made, strict=True)
        ]
    )


def _checked(url: str, field: str) -> str:
    """The URL, if an image could have it. Raises InvalidRequest."""
    try:
        parse_url(url)
    except BrokerError as error:
        raise InvalidRequest.of_field(field, error.message) from None
    return url


_URL = "https://cdn.example.com/players/kim.jpg"

OPERATIONS = of_resource(
    "Images",
    Operation(
        name="purgeImages",
        summary="Purge a source image, or all of the account, from the caches",
        handler=_purge,
        route=Route(
            "POST",
            "/images/purge",
            status=204,
            description="Removes results, the source, its faces and cached errors from memory and disk of"
            " every node within five seconds. Copies in browsers and intermediate caches remain.",
        ),
        example={"url": _URL},
    ),
    Operation(
        name="warmImages",
        summary="Produce images before they are requested",
        handler=_warm,
        route=Route(
            "POST",
            "/images/warm",
            description=f"At most {MAX_IMAGES} images, the pairs of `urls` and `options`. Answers when"
            " they are there, with the status that each has; those that take too long are 503.",
            ends_with_client=True,
        ),
        own_effect=Effect.NONE,
        example={"urls": [_URL], "options": ["w=400,h=400,fit=face"]},
    ),
)
