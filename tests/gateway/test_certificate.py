"""A gateway with a certificate, and what becomes of it when its files change."""

import logging
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from broker.gateway.certificate import CertificateWatch, read_key_pair
from broker.operations.known_gateways import url_template
from broker.settings import Settings
from broker.setup_error import SetupError
from tests.fetching.upstream import make_certificate
from tests.gateway.test_life import read_figures
from tests.gateway.world import open_world

pytestmark = pytest.mark.anyio

HOST = "demo.localhost"
EXPIRY = "broker_certificate_expiry_timestamp_seconds"


class Taker:
    """Takes certificates as the native server does; `refuses` all that it has not taken yet."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.refuses = False

    def set_certificate(self, chain: bytes, key: bytes) -> None:
        if self.refuses or chain != key:  # both are in one file here
            raise ValueError("they do not belong together")
        self.taken.append(chain)


def settings_of(certificate: Path, key: Path | None = None, **more: Any) -> Settings:
    return Settings.load({}, ws_tls_certificate=str(certificate), ws_tls_key=str(key or certificate), **more)


def watch_of(settings: Settings, taker: Taker) -> CertificateWatch:
    pair = read_key_pair(settings)
    assert pair is not None
    return CertificateWatch(settings, taker, pair)


def expiry_s(watch: CertificateWatch) -> float:
    (sample,) = watch.figures()
    assert (sample.name, sample.labels) == (EXPIRY, ("websocket",))
    return float(sample.value)


@pytest.mark.postgres
async def test_a_viewer_follows_a_gateway_that_speaks_tls(migrated_dsn: str, tmp_path: Path) -> None:
    file = make_certificate(tmp_path, HOST, days=20)
    context = ssl.create_default_context(cafile=str(file))
    names = {"ws_tls_certificate": str(file), "ws_tls_key": str(file)}
    async with open_world(migrated_dsn, **names) as world:
        program = await world.program()
        viewer = await world.join()
        await viewer.call("subscribe", programId=program)
        await world.publish(program, 3)
        assert await viewer.pushes(3) == [1, 2, 3]
        answer = await viewer.call("connect", programId=program)
        assert answer["url"].startswith("wss://")
        assert answer["streamUrl"].startswith("https://")
        before = read_figures(world)
        name = "broker_gateway_tls_handshakes_total"
        assert before[name, "full"] + before[name, "resumed"] >= 2
        assert before[name, "failed"] == 0
        assert 19 * 86_400 < before[EXPIRY, "websocket"] - time.time() < 20 * 86_400
        with pytest.raises(ssl.SSLError):
            await world.join(ssl=ssl.create_default_context())
        newer = make_certificate(tmp_path, HOST, days=60)
        assert newer == file  # in its place
        watch = world.gateway._certificate
        assert watch is not None
        await watch.look()
        with pytest.raises(ssl.SSLCertVerificationError):
            await world.join(ssl=context)
        later = await world.join(ssl=ssl.create_default_context(cafile=str(newer)))
        assert (await later.call("connect"))["url"].startswith("wss://")
        await world.publish(program)
        assert await viewer.pushes(1) == [4]
        assert read_figures(world)[EXPIRY, "websocket"] - time.time() > 59 * 86_400


async def test_files_that_have_not_changed_are_not_taken_again(tmp_path: Path) -> None:
    taker = Taker()
    watch = watch_of(settings_of(make_certificate(tmp_path, HOST)), taker)
    await watch.look()
    assert taker.taken == []
    file = make_certificate(tmp_path, HOST, days=9)
    for _ in range(2):
        await watch.look()
    assert taker.taken == [file.read_bytes()]
    assert 8 * 86_400 < expiry_s(watch) - time.time() < 9 * 86_400


async def test_half_a_renewal_changes_nothing_until_the_other_half_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, key = make_certificate(tmp_path, HOST), tmp_path / "key.pem"
    key.write_bytes(first.read_bytes())
    taker = Taker()
    watch = watch_of(settings_of(first, key), taker)
    before = expiry_s(watch)
    renewed = make_certificate(tmp_path, HOST, days=30).read_bytes()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await watch.look()
    assert (taker.taken, expiry_s(watch)) == ([], before)
    # Said once, not every five seconds.
    assert [record.message for record in caplog.records] == ["certificate_not_exchanged"]
    key.write_bytes(renewed)
    await watch.look()
    assert taker.taken == [renewed]
    assert expiry_s(watch) > before


async def test_files_that_are_gone_or_malformed_change_nothing(tmp_path: Path) -> None:
    file, taker = make_certificate(tmp_path, HOST), Taker()
    good = file.read_bytes()
    watch = watch_of(settings_of(file), taker)
    before = expiry_s(watch)
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        file.write_bytes(content)
        await watch.look()
    file.unlink()
    await watch.look()
    file.write_bytes(good)
    await watch.look()
    assert (taker.taken, expiry_s(watch)) == ([], before)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    file, empty = make_certificate(tmp_path, HOST), tmp_path / "empty"
    empty.touch()
    for certificate, key, told in (
        (tmp_path / "none", file, "BROKER_WS_TLS_CERTIFICATE: .*none: No such file"),
        (file, tmp_path / "none", "BROKER_WS_TLS_KEY: .*none: No such file"),
        (file, empty, "BROKER_WS_TLS_KEY: .*empty is empty"),
    ):
        with pytest.raises(SetupError, match=f"^{told}"):
            read_key_pair(settings_of(certificate, key))
    assert read_key_pair(Settings.load({})) is None


def test_clients_are_sent_to_the_scheme_that_is_spoken(tmp_path: Path) -> None:
    assert url_template(Settings.load({})) == "ws://{account}localhost:8001/api/v1/ws"
    file = make_certificate(tmp_path, HOST)
    assert url_template(settings_of(file)) == "wss://{account}localhost:8001/api/v1/ws"
    behind = settings_of(file, public_ws_url="wss://{account}live.example.org/api/v1/ws")
    assert url_template(behind) == "wss://{account}live.example.org/api/v1/ws"
