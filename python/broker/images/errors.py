"""The errors of image requests, in addition to those of `broker.fetching`."""

from broker.errors import BadGateway, BrokerError, FieldFault, GatewayTimeout
from broker.fetching.errors import InvalidUrl, UpstreamFailed, UpstreamTimeout


class InvalidOptions(BrokerError, status=422, name="invalid_options"):
    """A processing option is unknown, repeated, outside its set, or makes no sense beside another one."""


class InvalidImageUrl(BrokerError, status=422, name="invalid_url"):
    """The source's URL is missing, repeated, malformed, carries credentials, or is neither http nor https."""


class SourceFailed(BadGateway, name="upstream_failed"):
    """The source cannot be fetched: no connection, a status other than 200, too many redirects or bytes."""


class SourceTimeout(GatewayTimeout, name="upstream_timeout"):
    """The source was not there in time, counted over all redirects."""


class UnprocessableImage(BadGateway, name="unprocessable_image"):
    """What the upstream sent is no image of an allowed type, is cut off, broken, or over a limit."""


class DecoderEnded(UnprocessableImage):
    """The process that decoded the image crashed, or took too long and was ended."""


class TooCostly(DecoderEnded):
    """The image takes too much processor time with these options; others may be possible."""


def invalid_option(name: str, message: str) -> InvalidOptions:
    """The error that names one option and what is allowed for it."""
    return InvalidOptions(f"{name}: {message}", faults=[FieldFault(name, message)])


def told_of_source(error: BrokerError) -> BrokerError:
    """An error of fetching as those who ask for images know it."""
    for kind, told in (
        (UpstreamTimeout, SourceTimeout),
        (UpstreamFailed, SourceFailed),
        (InvalidUrl, InvalidImageUrl),
    ):
        if isinstance(error, kind):
            return told(error.message, log_text=error.log_text)
    return error


class FacesUnavailable(Exception):
    """No detector answers. Only operators see this error, because the crop falls back to attention."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
