"""The certificate and the key of the HTTP API, as HAProxy reads them from one file."""

import ssl
import tempfile

from broker.gateway.certificate import read_files
from broker.settings import Settings
from broker.setup_error import SetupError


def read_certificate(settings: Settings) -> bytes:
    """The certificate, its chain and its key as HAProxy reads them from one file.

    Raises:
        SetupError: they cannot be read, or do not belong together; the text names the setting.
    """
    pair = read_files("HTTP", settings.http_tls_certificate, settings.http_tls_key)
    lines = (pair.chain + b"\n" + pair.key).splitlines()
    # An empty line would end the command.
    content = b"\n".join(line for line in lines if line.strip()) + b"\n"
    with tempfile.NamedTemporaryFile() as file:  # for us alone
        file.write(content)
        file.flush()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file.name, password="")
        except (ssl.SSLError, ValueError) as error:
            told = getattr(error, "reason", None) or error
            raise SetupError(f"BROKER_HTTP_TLS_CERTIFICATE and BROKER_HTTP_TLS_KEY: {told}") from error
    return content
