"""The certificate of the HTTP API: HAProxy's, exchanged while it runs when its files change.

HAProxy takes a new certificate at its socket for operators ("set ssl cert" and "commit ssl cert" of its
management guide) and goes on with all connections. A process of HAProxy that starts later, as at each change
of replicas, reads the file beside its configuration, which is written anew before it starts.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from broker.deployments.http_key_pair import read_certificate
from broker.deployments.ingress_check import configurations
from broker.deployments.ingress_start import ask, certificate_file
from broker.gateway.certificate import KeyPair
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import Settings
from broker.setup_error import SetupError

_log = logging.getLogger(__name__)

_SOCKET = re.compile(r"^ *stats socket (\S+) ", re.MULTILINE)
_MOST_BYTES = 15_000  # that HAProxy takes of a command; its buffer has 16,384


class IngressCertificate:
    """Gives the HAProxy of this node a certificate that has changed; `look` has to be called now and then."""

    def __init__(self, settings: Settings, find: Callable[[], Iterable[Path]] = configurations) -> None:
        """Nothing is read yet. Args: find: the configurations of this node's HAProxy."""
        self._settings = settings
        self._find = find
        self._said = ""

    async def look(self) -> None:
        """Read the files, and exchange the certificate if they are others. Raises nothing."""
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
        """When the certificate that HAProxy has expires."""
        for configuration in self._find():
            with suppress(OSError, ValueError):
                content = certificate_file(configuration).read_bytes()
                expiry_s = KeyPair(content, content).expiry_s()
                yield Sample(catalogue.CERTIFICATE_EXPIRY.name, ("http",), expiry_s)
                return

    def _exchange(self) -> bool:
        """Whether one has been exchanged. Raises SetupError and OSError."""
        content = read_certificate(self._settings)
        exchanged = False
        for configuration in self._find():
            file = certificate_file(configuration)
            if not file.exists() or file.read_bytes() == content:
                continue
            found = _SOCKET.search(configuration.read_text())
            if found is None:
                continue
            _commit(found[1], file, content)
            file.write_bytes(content)
            exchanged = True
        return exchanged


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
