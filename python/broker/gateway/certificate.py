"""The certificate of the gateways: two files in PEM, read again when they change.

Whoever renews certificates writes two files, one after the other. Until both have arrived they do not belong
together, and the gateway keeps what it has. So does a gateway whose files are gone or malformed.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509

from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import Settings
from broker.setup_error import SetupError

_log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often the files are looked at."""

_MOST_BYTES = 1 << 20  # a chain has 2 to 10 kB


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its chain, and its key.

    Attributes:
        chain: in PEM, the server's own certificate first.
        key: in PEM, not encrypted.
    """

    chain: bytes
    key: bytes

    def expiry_s(self) -> float:
        """When the server's own certificate expires, as a Unix time. Raises ValueError: it is none."""
        return x509.load_pem_x509_certificate(self.chain).not_valid_after_utc.timestamp()


class _Server(Protocol):
    """What takes a certificate."""

    def set_certificate(self, chain: bytes, key: bytes) -> None:
        """Use it for new connections. Raises ValueError: it cannot be used."""


def read_key_pair(settings: Settings) -> KeyPair | None:
    """The files that the settings name for the gateways; None where they name none.

    Raises:
        SetupError: one cannot be read, or has no certificate; the text names the setting.
    """
    if not settings.ws_tls_certificate:
        return None
    return read_files("WS", settings.ws_tls_certificate, settings.ws_tls_key)


def read_files(door: str, certificate: str, key: str) -> KeyPair:
    """Two files. Args: door: as in the names of their settings. Raises SetupError, as `read_key_pair`."""
    pair = KeyPair(_read(f"BROKER_{door}_TLS_CERTIFICATE", certificate), _read(f"BROKER_{door}_TLS_KEY", key))
    try:
        pair.expiry_s()
    except ValueError as error:
        raise SetupError(f"BROKER_{door}_TLS_CERTIFICATE: {certificate}: {error}") from error
    return pair


class CertificateWatch:
    """Gives the server a certificate that has changed. `look` has to be called every `LOOK_S` seconds."""

    def __init__(self, settings: Settings, server: _Server, pair: KeyPair) -> None:
        """The server has `pair` already."""
        self._settings = settings
        self._server = server
        self._pair = self._refused = pair

    async def look(self) -> None:
        """Read the files, and exchange the certificate if they are others. Raises nothing."""
        try:
            pair = await asyncio.to_thread(read_key_pair, self._settings)
            if pair is None or pair in (self._pair, self._refused):
                return
            self._refused = pair
            self._server.set_certificate(pair.chain, pair.key)
        except (SetupError, ValueError) as error:
            _log.warning("certificate_not_exchanged", extra={"cause": str(error)})
            return
        self._pair = pair
        _log.info("certificate_exchanged", extra={"expires_s": pair.expiry_s()})

    def figures(self) -> Iterator[Sample]:
        """When the certificate that is in use expires."""
        yield Sample(catalogue.CERTIFICATE_EXPIRY.name, ("websocket",), self._pair.expiry_s())


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise SetupError(f"{name}: {path}: {error.strerror}") from error
    if not content:
        raise SetupError(f"{name}: {path} is empty")
    return content
