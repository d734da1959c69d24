"""Errors of Matomo: one exception inside this package, the broker's errors for callers."""

from broker.errors import BadGateway, BrokerError, GatewayTimeout, NotFound, Unavailable

_SHOWN_CHARACTERS = 300
_INNER = ("SQLSTATE", "SELECT ", "INSERT ", "/", "\\", "<", "token")


class SiteNotFound(NotFound, name="Not found"):
    """Matomo does not have the site that the project's metadata names."""


class SiteExists(BrokerError, name="Already exists"):
    """The project has a site already: GET verifies it, PUT completes it."""


class BadConfig(BrokerError, name="Bad config"):
    """Something about the site is wrong that PUT cannot mend; GET says what."""


class PlatformError(BrokerError, name="Platform error"):
    """Matomo failed, refused, or did not answer in time."""


class AnalyticsNotConfigured(Unavailable):
    """The account has no Matomo; the text names the setting that is missing."""


class MatomoError(Exception):
    """A request to Matomo that did not succeed.

    Attributes:
        text: what may be shown to callers.
        log_text: for operators; never holds a token.
        is_late: Matomo did not answer in time.
        is_going_on: Matomo may still be at work on it.
        is_passing: trying again may help.
        is_refused_token: Matomo does not accept the token.
    """

    def __init__(
        self,
        text: str,
        *,
        log_text: str = "",
        is_late: bool = False,
        is_going_on: bool = False,
        is_passing: bool = False,
        is_refused_token: bool = False,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.log_text = log_text or text
        self.is_late = is_late
        self.is_going_on = is_going_on
        self.is_passing = is_passing
        self.is_refused_token = is_refused_token


def refused_by_matomo(method: str, message: str) -> MatomoError:
    """The error of a request that Matomo answered with an error of its own.

    Its text is shown where it is a plain sentence. One that may quote SQL, a file or a token is for the log.
    """
    shown = f"Matomo refuses {method}"
    is_plain = message.isprintable() and not any(part in message for part in _INNER)
    if message and is_plain:
        shown = f"{shown}: {message[:_SHOWN_CHARACTERS]}"
    return MatomoError(shown, log_text=f"{method}: {message[:_SHOWN_CHARACTERS]}")


def site_error(error: MatomoError) -> PlatformError:
    """What an operation on a site answers."""
    return PlatformError(error.text, log_text=error.log_text)


def report_error(error: MatomoError) -> BrokerError:
    """What a report answers."""
    kind = GatewayTimeout if error.is_late else BadGateway
    return kind(error.text, log_text=error.log_text)
