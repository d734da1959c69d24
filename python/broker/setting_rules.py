"""The rules for texts and lists among the settings; `broker.settings` has the rules for numbers.

A rule says of one value whether it may be and, in words, what may be. What is near to a name or a value that
cannot be is said too, where it is near enough to have been meant.
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?")
_ACCOUNT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_RAY = re.compile(r"auto|(?:ray://)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")
_MATOMO_URL = re.compile(r"https?://(?P<host>[^/?#@\s\\]+)(?:/[A-Za-z0-9._~/-]*)?")
_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")
_FIELD_PATH = re.compile(r"[^\s.,]{1,100}(?:\.[^\s.,]{1,100}){0,9}")
_OPTION = r"[a-z]{1,20}=[A-Za-z0-9:._-]{1,64}"
_OPTIONS = rf"(?:-|{_OPTION}(?:,{_OPTION}){{0,9}})"
_OPTIONS_LIST = re.compile(rf"{_OPTIONS}(?: {_OPTIONS}){{0,9}}")
_LAST_PORT = 65_535
_TEXT_CHARACTERS = 4_096  # the longest path that Linux takes
_TYPING_ERROR = 0.8  # the share of letters in common from which one name is another with a typing error
_SHORTEST_WORD = 3
_MOST_NAMES = 3
PRINTABLE = f"text without control characters, at most {_TEXT_CHARACTERS:,} characters"
"""What every text must be."""


@dataclass(frozen=True, slots=True)
class SettingRule:
    """One rule: whether a value `is_allowed`, and what is, as `must be …` goes on.

    Attributes:
        may_be_empty: an empty list is allowed too.
        choices: all that is allowed, where that is a few words.
    """

    is_allowed: Callable[[str], bool]
    allowed: str
    may_be_empty: bool = True
    choices: tuple[str, ...] = ()

    def told_of(self, text: str) -> str:
        """What is allowed, and which of the choices is near to `text`."""
        near = difflib.get_close_matches(text.lower(), self.choices, n=1)
        return f"{self.allowed}; did you mean {near[0]}?" if near else self.allowed


def names_like(name: str, known: Sequence[str]) -> list[str]:
    """The names that may have been meant: the one with a typing error, or the first with all its words."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=_TYPING_ERROR)
    words = set(name.split("_"))
    if near or max(map(len, words)) < _SHORTEST_WORD:
        return near
    return [other for other in known if words <= set(other.split("_"))][:_MOST_NAMES]


def is_printable(text: str) -> bool:
    """The rule of every text: no control characters, and an end."""
    return text.isprintable() and len(text) <= _TEXT_CHARACTERS


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone means something on one machine only


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    # Of the ways to write a mask, the one that native code reads too.
    return text.partition("/")[2].isascii() and (("/" not in text) or text.partition("/")[2].isdigit())


def proxy_fault(senders: Sequence[str], trusted: Sequence[str], bind_host: str) -> str:
    """What is wrong with the networks that send PROXY headers; empty when nothing is. All are addresses.

    Args:
        trusted: the networks of proxies that are believed.
        bind_host: where clients are listened for.
    """
    believed = [_network(text) for text in trusted]
    own = [address for address in ("127.0.0.1", "::1", bind_host) if _is_address(address)]
    for text in senders:
        sender = _network(text)
        if not any(_contains(network, sender) for network in believed):
            return f"{text} must lie within BROKER_TRUSTED_PROXIES"
        # The product looks at its own ingress and warms images through it, without a header.
        for address in own:
            if _contains(sender, _network(address)):
                return f"{text} must not contain {address}, from which the product calls itself"
    return ""


def _network(text: str) -> _Network:
    return ipaddress.ip_network(text, strict=False)


def _contains(outer: _Network, inner: _Network) -> bool:
    if isinstance(outer, ipaddress.IPv4Network):
        return isinstance(inner, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, ipaddress.IPv6Network) and inner.subnet_of(outer)


def _is_host_name(text: str) -> bool:
    return len(text) <= 253 and _HOST_NAME.fullmatch(text) is not None  # RFC 1035, section 2.3.4


def _is_websocket_url(text: str) -> bool:
    return _is_url(text.replace("{account}", "").replace(NODE_LABEL, "node"), ("ws", "wss"))


def _is_postgres_url(text: str) -> bool:
    """Libpq's, as asyncpg reads it: it may name several hosts, or none for the socket of this machine."""
    try:
        return urlsplit(text).scheme in ("postgresql", "postgres") and "://" in text and " " not in text
    except ValueError:
        return False


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    host = parts.hostname or ""
    is_host = _is_host_name(host) or _is_address(host)
    return parts.scheme in schemes and is_host and parts.username is None and port != 0 and " " not in text


def _is_ray_address(text: str) -> bool:
    match = _RAY.fullmatch(text)
    return match is not None and int(match["port"] or 1) <= _LAST_PORT


def _is_host_port(text: str) -> bool:
    port = text.rpartition(":")[2] if text.rpartition("]")[2].count(":") else ""
    return _HOST_PORT.fullmatch(text) is not None and (not port or int(port) <= _LAST_PORT)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) <= _LAST_PORT


def _is_matomo_url(text: str) -> bool:
    found = _MATOMO_URL.fullmatch(text)
    return found is not None and _is_host_port(found["host"])


def _is_file(text: str) -> bool:
    return Path(text).is_file()


def _is_directory(text: str) -> bool:
    return Path(text).is_dir()


def _choice(*choices: str) -> SettingRule:
    return SettingRule(choices.__contains__, f"one of {', '.join(choices)}", choices=choices)


NODE = "node"
"""In place of an address: that of each node of a cluster."""
NODE_LABEL = "{node}"
"""In a URL: the address of each node as one label of a name."""

_PLACE = SettingRule(
    lambda text: text in ("localhost", NODE) or _is_address(text),
    "an IP address or localhost, on a cluster also `node`",
)
_PLACE_OF_FILE = SettingRule(lambda text: Path(text).is_absolute(), "an absolute path, the same on each node")
_HOSTS = SettingRule(_is_host_port, "host[:port], separated by commas")
_NETWORKS = SettingRule(_is_network, "IP addresses or networks such as 10.0.0.0/8, separated by commas")

MATOMO_URL = SettingRule(_is_matomo_url, "http(s)://host[:port][/path], without a user name or a query")
"""Where a Matomo is; of the setting, and of `broker account set`."""

RULES: Mapping[str, SettingRule] = {
    "bind_host": _PLACE,
    "ops_host": _PLACE,
    "public_host": SettingRule(_is_host_name, "a host name without a port"),
    "public_ws_url": SettingRule(_is_websocket_url, "a URL that begins with ws:// or wss://"),
    "http_tls_certificate": _PLACE_OF_FILE,
    "http_tls_key": _PLACE_OF_FILE,
    "ws_tls_certificate": _PLACE_OF_FILE,
    "ws_tls_key": _PLACE_OF_FILE,
    "database_url": SettingRule(
        _is_postgres_url, "a URL such as postgresql://user:password@host:5432/database"
    ),
    "postgres_bin": SettingRule(_is_directory, "a directory that exists"),
    "ray_address": SettingRule(_is_ray_address, "host:port or auto"),
    "default_account": SettingRule(
        lambda text: _ACCOUNT.fullmatch(text) is not None,
        "1 to 63 lowercase letters, digits and inner hyphens",
    ),
    "admin_password": SettingRule(lambda text: 8 <= len(text) <= 1_000, "8 to 1,000 characters"),
    "client_ids": SettingRule(
        lambda text: _CLIENT_ID.fullmatch(text) is not None,
        "names without spaces, separated by commas",
        may_be_empty=False,
    ),
    "trusted_proxies": _NETWORKS,
    "proxy_protocol": _NETWORKS,
    "ws_unlimited_addresses": _NETWORKS,
    "traces_url": SettingRule(
        lambda text: _is_url(text, ("http", "https")),
        "a URL that begins with http:// or https://, without a user name",
    ),
    "log_level": _choice("debug", "info", "warning", "error"),
    "gateway_send": _choice("auto", "io_uring", "send"),
    "faces_models": SettingRule(_is_directory, "a directory that exists"),
    "faces_detector": _choice("ssd", "tiny"),
    "images_shrink": _choice("fine", "fast"),
    "fetch_allow_hosts": _HOSTS,
    "identity_allow_hosts": _HOSTS,
    "images_allow_hosts": _HOSTS,
    "images_warm_fields": SettingRule(
        lambda text: _FIELD_PATH.fullmatch(text) is not None,
        "names of fields, such as photo or player.photo, separated by commas",
    ),
    "images_warm_options": SettingRule(
        lambda text: _OPTIONS_LIST.fullmatch(text) is not None,
        "options of images, such as w=400,h=300,fit=face, separated by spaces",
    ),
    "images_ports": SettingRule(_is_port, "ports from 1 to 65535, separated by commas"),
    "matomo_url": MATOMO_URL,
    "matomo_setup": SettingRule(_is_file, "a file that exists"),
    "settings_file": SettingRule(_is_file, "a file that exists"),
}
"""The rule of each text, and of each member of a list; a text without one is printable."""
