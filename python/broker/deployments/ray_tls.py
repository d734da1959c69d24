"""The certificate by which the processes of our own Ray authenticate each other.

Ray's secret is not enough to keep other users of the machine from its ports: its servers answer a few calls
without it, and a stream of Ray's syncer that lacks a header ends the process that takes it before the secret
is looked at. Besides, who listens on a port that one of Ray's processes has left would be sent the secret. So
Ray's connections are TLS with certificates on both sides: one, made at each start, is everybody's and its own
authority. Its key can be read by us alone.
"""

import subprocess
import sys
from pathlib import Path

CERTIFICATE = "certificate.pem"
KEY = "key.pem"

_MAKER = "broker.deployments.certificate"


def make_certificate(directory: Path, address: str) -> dict[str, str]:
    """Write certificate and key into `directory`; returns the environment that makes Ray use them. Blocks.

    Args:
        directory: for us alone; made when missing.
        address: the node's; peers check it.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    # In a process of its own: `broker up` would hold what it takes, 10 MB, for as long as it runs.
    subprocess.run([sys.executable, "-m", _MAKER, str(directory), address], check=True)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(directory / CERTIFICATE),
        "RAY_TLS_SERVER_KEY": str(directory / KEY),
        "RAY_TLS_CA_CERT": str(directory / CERTIFICATE),
    }
