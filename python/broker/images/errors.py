"""What a request for a picture fails with, beside the errors of `broker.fetching`."""

from broker.errors import BadGateway, BrokerError, FieldFault


class InvalidOptions(BrokerError):
    """A processing option is unknown, repeated, outside its set, or makes no sense beside another one."""

    status = 422
    name = "invalid_options"


class InvalidImageUrl(BrokerError):
    """The source's URL is missing, repeated, malformed, carries credentials, or is neither http nor https."""

    status = 422
    name = "invalid_url"


class UnprocessableImage(BadGateway):
    """What the upstream sent is no picture of an allowed type, is cut off, broken, or over a limit."""

    name = "unprocessable_image"


def invalid_option(name: str, message: str) -> InvalidOptions:
    """The error that names one option and what is allowed for it."""
    return InvalidOptions(f"{name}: {message}", faults=[FieldFault(name, message)])
