"""What browsers get beside the API: by name, the folder that the build made and the headers of its files."""

from collections.abc import Mapping
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

# Gateways have addresses of their own, which `/connect` names: a WebSocket may lead anywhere.
_DASHBOARD = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self' ws: wss:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}

SITES: dict[str, tuple[Path, Mapping[str, str]]] = {
    "dashboard": (_PACKAGE / "dashboard", _DASHBOARD),
}
"""By the first segment of the path."""
