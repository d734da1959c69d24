"""The whole product with certificates of its own: curl, openssl, both SDKs, a renewal while they follow."""

import asyncio
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from broker.client import AsyncClient
from broker.deployments.ports import free_port
from tests.deployments.instance import PASSWORD, Instance
from tests.fetching.upstream import make_certificate

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

HOST = "localhost"
WAIT_S = 60.0
NODE = Path(__file__).parents[2] / "js" / "client"
FOLLOW = """
import { WebSocket } from "ws";
import { Client } from "./dist/index.js";
const client = new Client(process.argv[1], { WebSocket });
for await (const event of client.subscribe("tls", { history: 10 })) {
  console.log(JSON.stringify([event.seq, event.event]));
  if (event.event === "Show#end") break;
}
client.close();
"""


def certificate_of(pem: str) -> str:
    """What is in a file before its key."""
    return pem.partition("-----BEGIN PRIVATE KEY-----")[0]


class Encrypted(Instance):
    """An instance whose doors have certificates, in one file."""

    def __init__(self, directory: Path) -> None:
        self.file = make_certificate(directory, HOST)
        (directory / "next").mkdir()
        self.next = make_certificate(directory / "next", HOST, days=30).read_text()
        self.trusted = directory / "trusted.pem"
        self.trusted.write_text(certificate_of(self.file.read_text()) + certificate_of(self.next))
        self.port = free_port()
        names = ("WS_TLS_CERTIFICATE", "WS_TLS_KEY", "HTTP_TLS_CERTIFICATE", "HTTP_TLS_KEY")
        environment = {f"BROKER_{name}": str(self.file) for name in names}
        environment["BROKER_HTTP_TLS_PORT"] = str(self.port)
        super().__init__(directory / "data", environment=environment)

    @property
    def secure_url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def presented(self, port: int) -> bytes:
        """The certificate that a port shows now, in DER."""
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    instance = Encrypted(tmp_path_factory.mktemp("tls"))
    with instance.running():
        yield instance


def test_curl_and_openssl_speak_with_both_doors(encrypted: Encrypted) -> None:
    for port, path, status in (
        (encrypted.port, "/api/v1/version", "200"),
        (encrypted.ws_port, "/api/v1/ws", "426"),
    ):
        words = ["curl", "--silent", "--cacert", str(encrypted.trusted), "--output", "/dev/null"]
        words += ["--resolve", f"{HOST}:{port}:127.0.0.1", "--write-out", "%{http_code} %{http_version}"]
        done = subprocess.run(
            [*words, f"https://{HOST}:{port}{path}"], capture_output=True, timeout=60, check=True
        )
        assert done.stdout.decode() == f"{status} 1.1"
        for version in ("-tls1_2", "-tls1_3"):
            asked = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", HOST, version]
            asked += ["-CAfile", str(encrypted.trusted), "-verify_return_error", "-alpn", "h2,http/1.1"]
            shown = subprocess.run(asked, input=b"", capture_output=True, timeout=60, check=True).stdout
            assert b"Verify return code: 0 (ok)" in shown
            assert b"ALPN protocol: http/1.1" in shown


def test_both_sdks_follow_while_the_certificate_is_renewed(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(encrypted.trusted))
    asyncio.run(_follow(encrypted))


async def _follow(encrypted: Encrypted) -> None:
    async with (
        asyncio.timeout(4 * WAIT_S),
        AsyncClient(encrypted.secure_url, username="admin", password=PASSWORD) as client,
    ):
        await client.programs.create("tls", "Behind no front door")
        node = await asyncio.create_subprocess_exec(
            "node",
            "--input-type=module",
            "--eval",
            FOLLOW,
            encrypted.secure_url,
            cwd=NODE,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(encrypted.trusted)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert node.stdout is not None
        await client.publish("tls", "Show#begin")
        assert json.loads(await node.stdout.readline()) == [1, "Show#begin"]
        seen = []
        async for event in client.subscribe("tls", history=10):
            seen.append((event.seq, event.event))
            if len(seen) == 1:
                await _renew(encrypted)
                await client.publish("tls", "Show#renewed")
            elif len(seen) == 2:
                await client.publish("tls", "Show#end")
            else:
                break
        assert seen == [(1, "Show#begin"), (2, "Show#renewed"), (3, "Show#end")]
        assert [json.loads(await node.stdout.readline()) for _ in range(2)] == [
            [2, "Show#renewed"],
            [3, "Show#end"],
        ]
        assert await node.wait() == 0


async def _renew(encrypted: Encrypted) -> None:
    """Put another certificate in the place of the first, and wait until both doors show it."""
    encrypted.file.write_text(encrypted.next)
    new = ssl.PEM_cert_to_DER_cert(certificate_of(encrypted.next).strip())
    for port in (encrypted.port, encrypted.ws_port):
        while await asyncio.to_thread(encrypted.presented, port) != new:  # noqa: ASYNC110 - doors tell nobody
            await asyncio.sleep(0.2)


def test_the_end_of_both_certificates_is_on_the_page_of_figures(encrypted: Encrypted) -> None:
    deadline_s = time.monotonic() + WAIT_S
    ends: dict[str, float] = {}
    while len(ends) < 2:
        assert time.monotonic() < deadline_s, ends
        page = httpx.get(f"{encrypted.ops_url}/metrics", timeout=20).text
        lines = [line for line in page.splitlines() if line.startswith("broker_certificate_expiry")]
        ends = {
            door: float(line.split()[-1])
            for line in lines
            for door in ("http", "websocket")
            if f'"{door}"' in line
        }
    assert [end for end in ends.values() if not 0 < end - time.time() < 31 * 86_400] == []
