"""The certificate by which the processes of our own Ray know each other.

Ray's secret is not enough to keep other users of the machine from its ports: its servers answer a few calls
without it, and a stream of Ray's syncer that lacks a header ends the process that takes it before the secret
is looked at. Besides, who listens on a port that one of Ray's processes has left would be sent the secret. So
Ray's connections are TLS with certificates on both sides: one, made at each start, is everybody's and its own
authority. Its key can be read by us alone.
"""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# It ends with its Ray, and the clock may be set: from the past to RFC 5280's "no end" (section 4.1.2.5).
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def make_certificate(directory: Path, address: str) -> dict[str, str]:
    """Write certificate and key into `directory`; returns the environment that makes Ray use them.

    Args:
        directory: for us alone; made when missing.
        address: the node's; peers check it.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(directory / "certificate.pem", pem)
    _write(directory / "key.pem", secret)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(directory / "certificate.pem"),
        "RAY_TLS_SERVER_KEY": str(directory / "key.pem"),
        "RAY_TLS_CA_CERT": str(directory / "certificate.pem"),
    }


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
