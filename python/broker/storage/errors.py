"""The error that stops a start, and the translation of the driver's errors into the broker's."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import asyncpg

from broker.errors import OutcomeUnknown, Unavailable
from broker.settings import SettingError
from broker.setup_error import SetupError

_RETRY_AFTER_S = 1

_AWAY_CLASSES = ("08", "53", "57P")
"""Connection lost; out of disk, memory or connections; shutting down, crashed or starting up."""

_AWAY_STATES = frozenset(
    {
        "25006",  # read-only: a standby, or a server that an operator has closed for writing
        "25P03",  # the transaction idled longer than it may
        "28000",  # the log-in is refused; at a start it stops us, later it is a rotated password
        "28P01",
        "3D000",  # the database does not exist (any more)
        "40001",  # the transaction lost against another one and left nothing behind
        "40P01",
        "55P03",  # a lock could not be had in time
        "57014",  # the statement took longer than it may
        "58030",  # the server's own disk fails
    }
)
"""SQLSTATEs after which the same call may succeed later (PostgreSQL manual, appendix A)."""


class SchemaError(SetupError):
    """The database's schema is not one that this version can work with."""


_LOST_CLASSES = ("08", "57P")
"""Connection lost; the server ended it. Every other error of a commit says that it failed."""


def is_away(error: BaseException) -> bool:
    """Whether the server is unavailable, overloaded or too slow; false when the statement itself is wrong."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state in _AWAY_STATES or state.startswith(_AWAY_CLASSES)
    return isinstance(error, ConnectionError | TimeoutError)


def unavailable(error: BaseException) -> Unavailable:
    """The broker's error for an unavailable server; the driver's own words go into the log text only."""
    return Unavailable(
        "the database cannot be reached; try again",
        retry_after_s=_RETRY_AFTER_S,
        log_text=f"PostgreSQL: {_one_line(error)}",
    )


def outcome_unknown(error: BaseException) -> OutcomeUnknown:
    """The broker's error for a commit that was never answered."""
    return OutcomeUnknown(
        "the database connection was lost during the commit; repeat the request with the same key",
        retry_after_s=_RETRY_AFTER_S,
        log_text=f"PostgreSQL: {_one_line(error)}",
    )


def setup_error(error: Unavailable) -> SetupError:
    """The line that tells an operator why the database cannot be used."""
    return SetupError(error.log_text or error.message)


@contextmanager
def connecting() -> Iterator[None]:
    """Translate what goes wrong while a connection is made.

    Raises:
        Unavailable: the server cannot be reached or refuses us.
        SettingError: the DSN cannot be read; its text is not repeated, it may hold a password.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        raise unavailable(error) from error
    except (asyncpg.InternalClientError, OSError) as error:
        # OSError is refused, unreachable, unknown host, no such socket, and TimeoutError
        raise unavailable(error) from error
    except ValueError as error:
        raise SettingError(
            "BROKER_DATABASE_URL: must look like postgresql://user:password@host:port/database"
        ) from error


@contextmanager
def using(connection: asyncpg.Connection) -> Iterator[None]:
    """Translate what goes wrong while `connection` is used; errors of the statement itself pass through."""
    try:
        yield
    except (asyncpg.PostgresError, ConnectionError, TimeoutError) as error:
        if is_away(error):
            raise unavailable(error) from error
        raise
    except asyncpg.InternalClientError as error:
        # The driver's protocol has lost its place: the server went away in the middle of a message.
        connection.terminate()
        raise unavailable(error) from error
    except asyncpg.InterfaceError as error:
        # The class alone does not tell misuse from a connection that broke before the call.
        if _is_closed(connection):
            raise unavailable(error) from error
        raise


@contextmanager
def committing(connection: asyncpg.Connection) -> Iterator[None]:
    """Translate the loss of `connection` while a statement is under way that commits; to be used in `using`.

    A server that answers with an error has not committed, unless it says that it ends the connection. A
    connection that is closed before the statement (`InterfaceError`) has carried nothing.

    Raises:
        OutcomeUnknown: the server has committed or not.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "").startswith(_LOST_CLASSES):
            raise outcome_unknown(error) from error
        raise
    except (ConnectionError, TimeoutError) as error:
        raise outcome_unknown(error) from error
    except asyncpg.InternalClientError as error:
        connection.terminate()
        raise outcome_unknown(error) from error


@contextmanager
def closing() -> Iterator[None]:
    """Pass over what goes wrong while a connection is closed, or given back: it is closed then, too.

    Without this it would hide why the connection is closed, or end what had nothing more to do with it.
    """
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        yield


def _is_closed(connection: asyncpg.Connection) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True  # the pool took it back, which it does while it is lent only when it closes


def _one_line(error: BaseException) -> str:
    state = f" ({error.sqlstate})" if isinstance(error, asyncpg.PostgresError) else ""
    text = " ".join(str(error).split()) or type(error).__name__
    return text + state
