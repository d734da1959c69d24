"""Real servers on loopback that answer as badly as they are told to."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.fetching.addresses import IpAddress
from broker.fetching.fetcher import FetchConfig, Fetcher
from broker.fetching.urls import AllowList


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A running server and what it was asked."""

    port: int
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    names: list[str | None] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "upstream.test", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def open_upstream(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """Serve `answer` on 127.0.0.1, one request a connection."""
    busy: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        busy.add(task)
        upstream.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            seen = Seen(method, path, headers, body)
            upstream.seen.append(seen)
            await answer(seen, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            busy.discard(task)
            writer.transport.abort() if tls else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    upstream = Upstream(server.sockets[0].getsockname()[1])
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: upstream.names.append(name)
    try:
        yield upstream
    finally:
        server.close()
        for task in list(busy):
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


def reply(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    """The same whole reply to everybody."""

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, status, body, **headers)

    return answer


async def send(writer: asyncio.StreamWriter, status: int = 200, body: bytes = b"", **headers: str) -> None:
    fields = {"Content-Length": str(len(body))} | {k.replace("_", "-"): v for k, v in headers.items()}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in fields.items() if value)]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


def loopback(address: IpAddress) -> bool:
    """Takes 127.0.0.1 for the one public address."""
    return str(address) == "127.0.0.1"


class Resolver:
    """Answers names from a list, one answer a question; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers or [["127.0.0.1"]])
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def open_fetcher(
    *ports: int,
    allow: tuple[str, ...] = (),
    resolve: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
) -> Fetcher:
    """A fetcher for which 127.0.0.1 is public."""
    config = FetchConfig(AllowList(allow), frozenset(ports), connect_s=2)
    return Fetcher(config, tls=tls, resolve=resolve or Resolver(), judge=loopback)


def make_certificate(folder: Path, name: str, days: float = 1) -> Path:
    """A file with a self-signed certificate for `name`, and its key.

    It says which key signed it, so that who trusts two of one name takes the right one.

    Args:
        days: that it is valid from now on.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return file
