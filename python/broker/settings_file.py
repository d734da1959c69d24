"""The settings file: `NAME=VALUE` lines, which `broker up` reads again while it runs.

The lines are a part of what systemd takes as an `EnvironmentFile=`, so that one file serves both. What
systemd would read in another way is refused: a line that goes on in the next, a backslash outside of single
quotes, text behind a closing quote. Nothing is expanded.
"""

import re
from pathlib import Path

LIMIT_BYTES = 1 << 20

_COMMENTS = ("#", ";")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES = ("'", '"')


class SettingsFileError(ValueError):
    """The file cannot be read as settings; the text says what it must be, and where it is not."""


def read_settings_file(path: Path) -> dict[str, str]:
    """The variables in the file, in its order.

    Raises:
        SettingsFileError: it cannot be read, is too large, or has a line that is none of its form.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
        if len(content) > LIMIT_BYTES:
            raise SettingsFileError(f"must be a file of at most {LIMIT_BYTES >> 20} MiB")
        text = content.decode()
    except UnicodeDecodeError:
        raise SettingsFileError("must be a file in UTF-8") from None
    except (OSError, ValueError) as error:
        if isinstance(error, SettingsFileError):
            raise
        cause = getattr(error, "strerror", None) or "no path"
        raise SettingsFileError(f"must be a file that can be read ({cause})") from error
    return parse_settings_file(text)


def parse_settings_file(text: str) -> dict[str, str]:
    """The variables in a text. Raises SettingsFileError."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(_COMMENTS):
            continue
        name, sign, value = stripped.partition("=")
        if not sign or not _NAME.fullmatch(name):
            raise SettingsFileError(f"must have NAME=VALUE in line {number}")
        if name in found:
            raise SettingsFileError(f"must have {name} once, and has it again in line {number}")
        found[name] = _parse_value(value.strip(), number)
    return found


def _parse_value(text: str, number: int) -> str:
    quote = text[:1] if text.startswith(_QUOTES) else ""
    value = text[1:-1] if quote else text
    if quote and (len(text) < 2 or not text.endswith(quote) or quote in value):
        raise SettingsFileError(f"must have one quoted text or none behind the = of line {number}")
    if quote != "'" and "\\" in value:
        raise SettingsFileError(f"must have no backslash outside of single quotes, as in line {number}")
    return value
