"""Reads the addresses of the replicas from the configuration that Ray Serve writes for HAProxy.

Ray's frontends and rules are left out, so a line that a later Ray adds opens no port and relaxes no rule.
What must be there and is not, or is made otherwise, is a fault that stops the start and names the line.

Names used: the template by which Ray Serve writes HAProxy's configuration: sections, names of backends and
what `_SERVER`, `_CHECK`, `_PREFIX` and `_LEFT_OUT` match.
Probe: the whole text is read at each start and reload.
Fall-back: none; what is not known stops the start with its line.
Gain: frontends, limits and errors of our own, and no page of Ray's that everybody can read.
"""

import re
from dataclasses import dataclass

_SECTION = re.compile(r"^(global|defaults|frontend|backend|listen)\b *(\S*)")
_SERVER = re.compile(r"server (?P<name>[\w.:-]+) (?P<address>[\w.:\[\]-]+:\d+) check\b(?P<rest>.*)")
_REST = re.compile(r"(?: observe layer4 error-limit \d+ on-error mark-down| backup)*")
_CHECK = re.compile(r"option httpchk GET /[\w/.-]*|http-check expect status \d{3}|default-server [\w ]+")
_PREFIX = re.compile(r"acl is_(\S+) path (/[\w./~-]*)")
_LEFT_OUT = re.compile(r"log global|http-reuse \w+|timeout [\w-]+ \w+")
"""Lines of a backend in whose place we have our own."""
_BACKEND = "http-"
_ROUTED = "-via-ingress-request-router"  # a second way to replicas of language models


class IngressFault(Exception):
    """The ingress cannot be made as it must be; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Application:
    """An application of Ray Serve.

    Attributes:
        backend: the name by which Ray asks HAProxy for its figures.
        prefix: of its paths; `/` for all that no longer one takes.
        checks: lines that say how HAProxy sees whether a replica answers.
        servers: lines with its replicas, and at last Ray's own proxy, which waits for one.
    """

    backend: str
    prefix: str
    checks: tuple[str, ...]
    servers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in Ray Serve."""
        return self.backend.removeprefix(_BACKEND)


@dataclass(frozen=True, slots=True)
class RayInput:
    """Where Ray expects to reach HAProxy and finds what it has kept, and the applications.

    Attributes:
        applications: those of the longest prefix first.
    """

    admin: str
    state_base: str
    state_file: str
    applications: tuple[Application, ...]


def read_ray(text: str) -> RayInput:
    """Read a configuration of Ray's.

    Raises:
        IngressFault: something is missing, or Ray writes it in another way.
    """
    sections = _sections(text)
    prefixes = dict(_PREFIX.findall(text))
    general = "\n".join(sections.get("global ", ()))
    applications = [
        _application(name.removeprefix("backend "), lines, prefixes)
        for name, lines in sections.items()
        if name.startswith(f"backend {_BACKEND}") and not name.endswith(_ROUTED)
    ]
    return RayInput(
        admin=_word(general, "stats socket"),
        state_base=_word(general, "server-state-base"),
        state_file=_word(general, "server-state-file"),
        applications=tuple(sorted(applications, key=lambda found: (-len(found.prefix), found.prefix))),
    )


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if found := _SECTION.match(line):
            lines = sections.setdefault(f"{found[1]} {found[2]}", [])
        elif line.strip() and not line.strip().startswith("#"):
            lines.append(line.strip())
    return sections


def _application(backend: str, lines: list[str], prefixes: dict[str, str]) -> Application:
    if backend not in prefixes:
        raise IngressFault(f"Ray Serve does not say which paths its backend {backend} has")
    checks = tuple(line for line in lines if _CHECK.fullmatch(line))
    servers = tuple(_server(line) for line in lines if line.startswith("server "))
    for line in lines:
        if line not in (*checks, *servers) and not _LEFT_OUT.fullmatch(line):
            raise IngressFault(f"Ray Serve writes an unknown line into its backend {backend}: {line}")
    if not any(line.startswith("option httpchk") for line in checks):
        raise IngressFault(f"Ray Serve does not say how its backend {backend} is checked")
    return Application(backend, prefixes[backend], checks, servers)


def _server(line: str) -> str:
    found = _SERVER.fullmatch(line)
    if found is None or not _REST.fullmatch(found["rest"]):
        raise IngressFault(f"Ray Serve names a replica in an unexpected way: {line}")
    return line


def _word(general: str, keyword: str) -> str:
    found = re.search(rf"^{keyword} (\S+)", general, re.MULTILINE)
    if found is None:
        raise IngressFault(f"Ray Serve's configuration of HAProxy has no {keyword!r}")
    return found[1]
