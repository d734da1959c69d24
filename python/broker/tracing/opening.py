"""Opens the tracer of a process, if traces are on and can be sent."""

import importlib.util
import logging

from broker.clock import Clock
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.tracing.tracer import Tracer

_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_REMEDY = "the extra `traces` is not installed: pip install 'onair-broker[server,traces]'"

_log = logging.getLogger(__name__)


def open_tracer(settings: Settings, part: str, clock: Clock) -> Tracer | None:
    """The tracer of this process, to be closed by the caller; None while traces are off.

    A process whose machine lacks the extra goes on without traces, and logs so.

    Args:
        part: what the process is, as in its logs.
    """
    if not settings.traces_url:
        return None
    try:
        # Not above: nobody pays for OpenTelemetry without traces.
        from broker.tracing.otlp import OtlpTracer
    except ImportError as error:
        _log.error("traces_off", extra={"cause": str(error), "remedy": _REMEDY})
        return None
    return OtlpTracer(settings.traces_url, part, clock)


def require_installed() -> None:
    """Raise SetupError where traces cannot be sent."""
    try:
        is_there = importlib.util.find_spec(_EXPORTER) is not None
    except ModuleNotFoundError:  # a package that it is in
        is_there = False
    if not is_there:
        raise SetupError(f"BROKER_TRACES_URL: {_REMEDY}")
