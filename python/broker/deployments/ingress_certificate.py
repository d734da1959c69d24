"""The certificate of the HTTP API: HAProxy's, exchanged while it runs when its files change.

HAProxy takes a new certificate at its socket for operators ("set ssl cert" and "commit ssl cert" of its
management guide) and goes on with all connections. A process of HAProxy that starts later, as at each change
of replicas, reads the file beside its configuration, which is written anew before it starts.

If it does not start, the process before it goes on with the certificate that it has, whatever the file says.
So the watch asks HAProxy which one it serves ("show ssl cert"), exchanges what differs, and reports the end
of what is served. HAProxy tells the server's own certificate: a chain that alone has changed is seen by the
file.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.deployments.http_key_pair import read_certificate
from broker.deployments.ingress_check import configurations
from broker.deployments.ingress_start import ask, certificate_file
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import Settings
from broker.setup_error import SetupError

_log = logging.getLogger(__name__)

_SOCKET = re.compile(r"^ *stats socket (\S+) ", re.MULTILINE)
_FINGERPRINT = re.compile(r"^SHA1 FingerPrint: ([0-9A-F]{40})$", re.MULTILINE)
_END = re.compile(r"^notAfter: (.+) GMT$", re.MULTILINE)
_MOST_BYTES = 15_000  # that HAProxy takes of a command; its buffer has 16,384


@dataclass(frozen=True, slots=True)
class _Served:
    """The certificate that HAProxy shows to clients; `expiry_s` is a Unix time."""

    fingerprint: str
    expiry_s: float


class IngressCertificate:
    """Gives the HAProxy of this node a certificate that has changed; `look` has to be called now and then."""

    def __init__(self, settings: Settings, find: Callable[[], Iterable[Path]] = configurations) -> None:
        """Nothing is read yet. Args: find: the configurations of this node's HAProxy."""
        self._settings = settings
        self._find = find
        self._said = ""
        self._expiry_s: float | None = None

    async def look(self) -> None:
        """Read the files, and exchange the certificate if HAProxy has another one. Raises nothing."""
        try:
            exchanged = await asyncio.to_thread(self._exchange)
        except (SetupError, OSError) as error:
            if str(error) != self._said:
                _log.warning("certificate_not_exchanged", extra={"door": "http", "cause": str(error)})
            self._said = str(error)
            return
        self._said = ""
        if exchanged:
            _log.info("certificate_exchanged", extra={"door": "http"})

    def figures(self) -> Iterator[Sample]:
        """When the certificate that HAProxy serves expires, as it last answered; nothing before that."""
        if self._expiry_s is not None:
            yield Sample(catalogue.CERTIFICATE_EXPIRY.name, ("http",), self._expiry_s)

    def _exchange(self) -> bool:
        """Whether one has been exchanged. Raises SetupError and OSError."""
        self._expiry_s, exchanged = self._served_until(), False
        content = read_certificate(self._settings)
        wanted = _fingerprint(content)
        for admin, file in self._places():
            if file.read_bytes() == content and _ask_served(admin, file).fingerprint == wanted:
                continue
            _commit(admin, file, content)
            file.write_bytes(content)
            exchanged = True
        if exchanged:
            self._expiry_s = self._served_until()
        return exchanged

    def _served_until(self) -> float | None:
        """When the first certificate of this node's HAProxy ends. Raises SetupError and OSError."""
        return min((_ask_served(*place).expiry_s for place in self._places()), default=None)

    def _places(self) -> Iterator[tuple[str, Path]]:
        """The socket for operators of each HAProxy of this node, and the file of its certificate."""
        for configuration in self._find():
            file = certificate_file(configuration)
            found = _SOCKET.search(configuration.read_text())
            if file.exists() and found is not None:
                yield found[1], file


def _ask_served(admin: str, file: Path) -> _Served:
    """Raises SetupError: HAProxy has none of this name; and OSError: it does not answer."""
    told = ask(admin, f"show ssl cert {file}")
    fingerprint, end = _FINGERPRINT.search(told), _END.search(told)
    if fingerprint is None or end is None:
        raise SetupError(f"BROKER_HTTP_TLS_CERTIFICATE: HAProxy: {told.strip()}")
    until = datetime.strptime(end[1], "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    return _Served(fingerprint[1], until.timestamp())


def _fingerprint(content: bytes) -> str:
    """As HAProxy writes it; it names a certificate and protects nothing."""
    certificate = x509.load_pem_x509_certificate(content)
    return certificate.fingerprint(hashes.SHA1()).hex().upper()  # noqa: S303 - HAProxy tells no other one


def _commit(admin: str, file: Path, content: bytes) -> None:
    """Raises SetupError: HAProxy does not take it; and OSError: it does not answer."""
    if len(content) > _MOST_BYTES:
        raise SetupError(
            f"BROKER_HTTP_TLS_CERTIFICATE: {len(content)} bytes with the key; HAProxy takes {_MOST_BYTES}"
            " while it runs"
        )
    ask(admin, f"abort ssl cert {file}")
    told = ask(admin, f"set ssl cert {file} <<\n{content.decode('latin-1')}\n")
    if "Transaction created" in told:
        told = ask(admin, f"commit ssl cert {file}")
    if "Success!" not in told:
        raise SetupError(f"BROKER_HTTP_TLS_CERTIFICATE: HAProxy: {told.strip()}")
