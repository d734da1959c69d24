"""The image's HEALTHCHECK: both doors take connections, and the API answers."""

import os
import socket
import urllib.request

_TIME_OUT_S = 4.0
_HTTP = os.environ.get("BROKER_HTTP_PORT") or "8000"
_WS = os.environ.get("BROKER_WS_PORT") or "8001"

socket.create_connection(("127.0.0.1", int(_WS)), _TIME_OUT_S).close()
urllib.request.urlopen(f"http://127.0.0.1:{_HTTP}/healthz", timeout=_TIME_OUT_S).close()
