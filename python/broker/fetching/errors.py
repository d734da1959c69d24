"""The errors of a fetch. Addresses and causes are for operators only, in `log_text`."""

from broker.errors import BadGateway, BrokerError, GatewayTimeout, InvalidRequest


class InvalidUrl(InvalidRequest):
    """The URL is malformed, carries credentials, or its scheme is neither http nor https."""


class ForbiddenUrl(BrokerError, status=403, name="forbidden_url"):
    """The URL, or one that it redirects to, leads to an address or a port that is not for us to ask."""


class UpstreamFailed(BadGateway):
    """The server cannot be reached, breaks the protocol, or redirects too often."""


class TooLarge(UpstreamFailed):
    """The reply has more bytes than the caller takes, as sent or unpacked."""


class UpstreamTimeout(GatewayTimeout):
    """The reply was not complete in time, counted over all redirects."""
