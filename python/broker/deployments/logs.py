"""Logs as lines of JSON: one event each, with its fields."""

import logging
import sys

import orjson

from broker.settings import Settings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

_REQUESTS = "broker.access"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, event, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logs(settings: Settings) -> None:
    """Send the log of this process to standard error, which is a file of the data directory."""
    # Ray Serve puts a stream of its own in place of `sys.stderr`, which takes 100 µs for each line.
    stream = sys.__stderr__ or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    # Requests come as finished lines, many at a time.
    lines = logging.StreamHandler(stream)
    for name, own in (("broker", handler), (_REQUESTS, lines)):
        logger = logging.getLogger(name)
        logger.handlers = [own]
        logger.setLevel(settings.log_level.upper())
        logger.propagate = False
