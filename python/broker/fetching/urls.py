"""URLs that may be fetched, and the hosts that an operator has allowed.

The URL is taken apart once; what was checked is what is connected to. An entry `host[:port]` of an allow list
opens the host that a URL names, whatever its addresses are: with a port that port only, without one all its
ports. It does not open other names of the same address.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

import httpx

from broker.fetching.addresses import is_odd_number, parse_address
from broker.fetching.errors import ForbiddenUrl, InvalidUrl

MAX_URL_CHARACTERS = 8192
_REMEMBERED = 128  # URLs: 3 MB where each is as long as it may be
DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,254}$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """An http or https URL in its parts.

    Attributes:
        host: in lower case, international names as their A-labels, IPv6 without brackets.
        path: path and query as they are sent; the fragment is gone.
    """

    scheme: str
    host: str
    port: int
    path: bytes
    text: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What two URLs must share to be of one server (RFC 6454, section 4)."""
        return self.scheme, self.host, self.port

    def join(self, location: str) -> "ParsedUrl":
        """The target of a redirect from here. Raises as `parse_url`."""
        try:
            joined = httpx.URL(self.text).join(location)
        except (httpx.InvalidURL, ValueError):
            raise InvalidUrl("the URL of the redirect is malformed") from None
        return parse_url(str(joined))


class AllowList:
    """Hosts that are exempt from the checks of address and port."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError for an entry that is no `host[:port]`."""
        self._entries = frozenset(_parse_entry(entry) for entry in entries)

    def covers(self, host: str, port: int) -> bool:
        """Whether an entry opens this port of this host."""
        host = host.removesuffix(".")
        return (host, port) in self._entries or (host, None) in self._entries


@lru_cache(_REMEMBERED)
def parse_url(text: str) -> ParsedUrl:
    """Take a URL apart.

    The last ones are remembered: an image's is taken apart for its account's rules, for its host's turns and
    for the request, which comes to as much as the request itself.

    Raises:
        InvalidUrl: malformed, with credentials, too long, or neither http nor https.
        ForbiddenUrl: the host is an IPv4 address in an odd spelling.
    """
    if len(text) > MAX_URL_CHARACTERS:
        raise InvalidUrl(f"the URL must not be over {MAX_URL_CHARACTERS} characters")
    _refuse_odd_number(text)
    try:
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, ValueError, TypeError):
        raise InvalidUrl("the URL is malformed") from None
    if url.scheme not in DEFAULT_PORTS:
        raise InvalidUrl("the URL must begin with http:// or https://")
    if url.userinfo or "@" in url.netloc.decode("latin-1"):
        raise InvalidUrl("the URL must not carry a user name or a password")
    if not _is_host(host):
        raise InvalidUrl("the URL has no valid host")
    port = DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65536:
        raise InvalidUrl("the URL's port must be 1 to 65535")
    return ParsedUrl(url.scheme, host, port, url.raw_path, str(url))


def _refuse_odd_number(text: str) -> None:
    """Before the other checks, because the parser calls some spellings malformed and takes others."""
    try:
        host = urlsplit(text).hostname or ""
    except ValueError:
        return
    if ":" not in host and is_odd_number(host):
        raise ForbiddenUrl("the URL's host must be a name, or an address in its usual spelling")


def _is_host(host: str) -> bool:
    if ":" in host:
        return "%" not in host and parse_address(host) is not None
    return _NAME.fullmatch(host) is not None and not is_odd_number(host)


def _parse_entry(entry: str) -> tuple[str, int | None]:
    try:
        url = httpx.URL(f"http://{entry.strip()}")
        # not url.port, which forgets a port that is the scheme's own
        _, _, port = entry.strip().rpartition("]")[2].partition(":")
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        number = int(port) if port else None
    except (httpx.InvalidURL, ValueError):
        raise ValueError(f"{entry}: must be host[:port]") from None
    is_bare = (
        url.raw_path == b"/" and not url.userinfo and not url.fragment and not entry.strip().endswith(":")
    )
    if not is_bare or not _is_host(host) or (number is not None and not 0 < number < 65536):
        raise ValueError(f"{entry}: must be host[:port]")
    return host, number
