"""nchan: nginx's module, viewers by WebSocket and publishing by HTTP.

python -m bench.servers.nchan PORT
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from bench.peers.install import DEBIAN, PEERS, PINS, read_pins
from bench.servers.command import Message, build_message
from bench.servers.outside import encode_post, serve_outside

CONFIG = """
load_module {module};
user root;
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log stderr crit;
events {{ worker_connections 19900; use epoll; multi_accept on; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    nchan_shared_memory_size 512M;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        nchan_channel_id bench;
        location = /publish {{ nchan_publisher http; nchan_message_buffer_length 1000; }}
        location = /subscribe {{ nchan_subscriber websocket; nchan_subscriber_first_message newest; }}
    }}
}}
"""


OWN_VAR = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /var/lib && mkdir /var/lib/nginx && exec "$@"',
    "sh",
)
"""nchan insists on a directory below /var/lib/nginx, and its directive for another one is refused as a
duplicate. A mount namespace gives it one that nobody else sees."""


def encode(message: Message) -> bytes:
    """The request that publishes a message."""
    return encode_post("/publish", build_message(message))


async def main(port: int) -> None:
    """Serve until the input ends."""
    pins = read_pins((PINS / "debian.txt").read_text())
    version = f"{pins['libnginx-mod-nchan'][0]}, nginx {pins['nginx'][0]}"
    with tempfile.TemporaryDirectory(prefix="bench-nchan-") as directory:
        config = Path(directory) / "nginx.conf"
        config.write_text(CONFIG.format(module=PEERS["nchan"].program, directory=directory, port=port))
        command: list[str | Path] = [
            *OWN_VAR,
            DEBIAN / "usr/sbin/nginx",
            "-p",
            directory,
            "-e",
            "stderr",
            "-c",
            config,
        ]
        await serve_outside(command, port, encode, version=version, workers=1)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
