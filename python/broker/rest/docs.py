"""The reference for people: one self-contained page that renders the OpenAPI document."""

import base64
import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "docs_page"


@cache
def page() -> bytes:
    """The page, with its style and script inside."""
    text = (_FOLDER / "docs.html").read_text(encoding="utf-8")
    return text.replace("/*style*/", _part("docs.css")).replace("/*script*/", _part("docs.js")).encode()


@cache
def headers() -> tuple[tuple[bytes, bytes], ...]:
    """Headers that let the page run its own script and style and nothing else."""
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src {_hash('docs.js')};"
        f" style-src {_hash('docs.css')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"cache-control", b"public, max-age=300"),
        (b"x-content-type-options", b"nosniff"),
    )


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
