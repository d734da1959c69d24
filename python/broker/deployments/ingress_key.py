"""The secret by which replicas recognise the ingress, on a shared cluster.

It does not travel with the job: Ray writes what a job has in its environment into the command lines of
workers and into its logs, where every user of a node can read it. So each node makes it of the token that all
nodes have, or has it in its environment.
"""

import hmac
import os
from pathlib import Path

NAME = "BROKER_INGRESS_KEY"
_PURPOSE = b"broker ingress"


def key_of_cluster() -> str:
    """The key that every node of this cluster makes; empty where it has no token."""
    token = _ray_token()
    return hmac.digest(token.encode(), _PURPOSE, "sha256").hex() if token else ""


def _ray_token() -> str:
    """The token with which Ray's processes know each other, from where Ray itself looks for it."""
    if token := os.environ.get("RAY_AUTH_TOKEN", ""):
        return token
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text().strip()
    except OSError:
        return ""
