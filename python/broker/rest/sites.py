"""The web pages beside the API: the folders of the build, by name, and the headers of their files."""

from collections.abc import Mapping
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

# Gateways have addresses of their own, which `/connect` names: a WebSocket may lead anywhere.
_DASHBOARD = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self' ws: wss:; frame-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}

_OVERLAY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self'",  # portraits come through the image service
        "connect-src 'self' http: https: ws: wss:",  # gateways, by their own addresses
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors *",  # OBS docks, renderers and the dashboard frame it; it has nothing to click on
    )
)

SITES: dict[str, tuple[Path, Mapping[str, str]]] = {
    "overlay": (
        _PACKAGE / "overlay",
        {
            "Content-Security-Policy": _OVERLAY_POLICY,
            "Cross-Origin-Resource-Policy": "cross-origin",  # renderers of OGraf and SPX load from it
            "Referrer-Policy": "no-referrer",
        },
    ),
    "dashboard": (_PACKAGE / "dashboard", _DASHBOARD),
}
"""By the first segment of the path."""
