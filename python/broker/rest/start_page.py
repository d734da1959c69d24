"""The page at `/`: says where things are, as a page for browsers, as text for curl, as JSON for programs."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape

import orjson

from broker import __version__
from broker.image_urls import PREFIX as IMAGES
from broker.rest.headers import RawHeader
from broker.rest.request import JSON_TYPE, Headers, negotiate
from broker.rest.routing import PREFIX

_API = "/" + "/".join(PREFIX)
_HTML, _TEXT = "text/html", "text/plain"
PRODUCES = (_TEXT, _HTML, JSON_TYPE)
"""What it can be had as; whoever takes anything, as curl does, gets the first."""


@dataclass(frozen=True, slots=True)
class StartPageEntry:
    """Something that is served: its name in JSON, its path, and what it is.

    `is_page` where a person can look at it.
    """

    name: str
    path: str
    text: str
    is_page: bool = True


ENTRIES = (
    StartPageEntry(
        "dashboard", "/dashboard/", "Run a show from a browser: programs, polls, users, statistics."
    ),
    StartPageEntry(
        "overlay", "/overlay/", "What goes on air: add ?program=ID, in a browser, OBS, CasparCG or vMix."
    ),
    StartPageEntry("reference", "/docs", "The reference of the API: HTTP, WebSocket and event streams."),
    StartPageEntry("openapi", f"{_API}/openapi.json", "The HTTP interface as an OpenAPI document."),
    StartPageEntry(
        "asyncapi", f"{_API}/asyncapi.json", "WebSocket and event streams as an AsyncAPI document."
    ),
    StartPageEntry("connect", f"{_API}/connect", "Where WebSocket connections go."),
    StartPageEntry("version", f"{_API}/version", "Which version this is, and when it was built."),
    StartPageEntry(
        "health", "/healthz", "Whether this broker answers. Operators ask /readyz on their own port."
    ),
    StartPageEntry("keys", "/.well-known/jwks.json", "The public keys of access tokens."),
    StartPageEntry("api", _API, "Below this path is the API; a token comes from POST /token.", is_page=False),
    StartPageEntry("images", IMAGES, "Below this path images are resized and cropped.", is_page=False),
)

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 44rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0; }
p { margin: .25rem 0 1.5rem; }
ul { list-style: none; margin: 0; padding: 0; }
li { border-top: 1px solid color-mix(in srgb, currentColor 18%, transparent); padding: .75rem 0; }
a, code { display: block; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
a { color: light-dark(#0b57d0, #8ab4f8); }
a:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
"""


def start_page(headers: Headers) -> tuple[bytes, str, tuple[RawHeader, ...]]:
    """The page in the form that the request prefers: body, media type, headers.

    Raises:
        NotAcceptable: it takes none of them.
    """
    chosen = negotiate(headers, PRODUCES)
    render, media_type = _FORMS[chosen]
    return render(), media_type, _headers()


@cache
def _page() -> bytes:
    rows = "\n".join(f"<li>{_link(entry)}{escape(entry.text)}</li>" for entry in ENTRIES)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The broker</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>The broker</h1>
<p>Version {escape(__version__)}. What is here:</p>
<ul>
{rows}
</ul>
</main>
</body>
</html>
""".encode()


def _link(entry: StartPageEntry) -> str:
    path = escape(entry.path)
    return f'<a href="{path}">{path}</a>' if entry.is_page else f"<code>{path}/…</code>"


@cache
def _text() -> bytes:
    width = max(len(entry.path) for entry in ENTRIES)
    lines = [f"{entry.path:<{width}}  {entry.text}" for entry in ENTRIES]
    return "\n".join((f"The broker, version {__version__}", "", *lines, "")).encode()


@cache
def _json() -> bytes:
    return orjson.dumps(
        {"name": "broker", "version": __version__, "links": {entry.name: entry.path for entry in ENTRIES}}
    )


_FORMS: Mapping[str, tuple[Callable[[], bytes], str]] = {
    _HTML: (_page, f"{_HTML}; charset=utf-8"),
    _TEXT: (_text, f"{_TEXT}; charset=utf-8"),
    JSON_TYPE: (_json, JSON_TYPE),
}


@cache
def _headers() -> tuple[RawHeader, ...]:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"cache-control", b"public, max-age=300"),
        (b"vary", b"accept"),
    )
