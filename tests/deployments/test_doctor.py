import resource
import socket
from pathlib import Path

import pytest

from broker.deployments import doctor
from broker.deployments.data_dir import claim
from broker.deployments.doctor import CheckVerdict, run_checks
from broker.deployments.ports import free_port
from broker.settings import Settings
from broker.storage.migrations import migrate
from tests.auth.services import open_database
from tests.fetching.upstream import make_certificate
from tests.maintenance import switch

pytestmark = pytest.mark.anyio


async def verdicts(settings: Settings, *names: str) -> dict[str, tuple[CheckVerdict, str]]:
    found = await run_checks(settings, names or None)
    return {finding.check: (finding.verdict, finding.detail) for finding in found}


def settings_of(tmp_path: Path, **changes: object) -> Settings:
    ports = {name: free_port() for name in ("http_port", "ws_port", "ops_port")}
    return Settings.load({}, data_dir=tmp_path / "data", **ports | changes)


async def test_good_set_up_has_no_error_and_nothing_is_made(tmp_path: Path) -> None:
    found = await verdicts(settings_of(tmp_path))
    assert [name for name, (verdict, _) in found.items() if verdict is CheckVerdict.ERROR] == []
    assert list(found) == list(doctor.CHECKS)
    assert not (tmp_path / "data").exists()


@pytest.mark.postgres
async def test_database_is_asked_for_its_version_and_schema(tmp_path: Path, postgres_dsn: str) -> None:
    settings = settings_of(tmp_path, database_url=postgres_dsn)
    verdict, detail = (await verdicts(settings, "postgresql"))["postgresql"]
    assert verdict is CheckVerdict.WARNING
    assert "broker migrate" in detail
    await migrate(postgres_dsn)
    verdict, detail = (await verdicts(settings, "postgresql"))["postgresql"]
    assert verdict is CheckVerdict.OK
    assert "up to date" in detail
    async with open_database(postgres_dsn) as database:
        await switch(database, on=True)
    verdict, detail = (await verdicts(settings, "postgresql"))["postgresql"]
    assert verdict is CheckVerdict.WARNING
    assert "broker maintenance off" in detail


@pytest.mark.postgres
async def test_server_that_may_lose_what_it_has_committed_is_a_warning(
    tmp_path: Path, postgres_dsn: str
) -> None:
    """The server of the tests is one: it does not flush."""
    settings = settings_of(tmp_path, database_url=postgres_dsn)
    verdict, detail = (await verdicts(settings, "durability"))["durability"]
    assert verdict is CheckVerdict.WARNING
    assert [risk.partition(":")[0] for risk in detail.split("; ")] == [
        "fsync is off",
        "full_page_writes is off",
        "synchronous_commit is off",
    ]
    assert (await verdicts(settings_of(tmp_path), "durability"))["durability"][0] is CheckVerdict.OK


async def test_database_that_is_away_is_an_error(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, database_url=f"postgresql://broker@127.0.0.1:{free_port()}/x")
    verdict, detail = (await verdicts(settings, "postgresql"))["postgresql"]
    assert verdict is CheckVerdict.ERROR
    assert detail.startswith("PostgreSQL: ")


async def test_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_of(tmp_path, ws_port=taken.getsockname()[1])
        verdict, detail = (await verdicts(settings, "ports"))["ports"]
    assert verdict is CheckVerdict.ERROR
    assert "--ws-port" in detail


async def test_running_instance_is_no_error(tmp_path: Path) -> None:
    held = claim(tmp_path / "data")
    found = await verdicts(settings_of(tmp_path), "data directory", "ports")
    held.release()
    assert found["data directory"][0] is found["ports"][0] is CheckVerdict.OK


async def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_BYTES", 1 << 62)
    assert (await verdicts(settings_of(tmp_path), "disk"))["disk"][0] is CheckVerdict.ERROR


async def test_missing_haproxy_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_haproxy", lambda: None)
    assert (await verdicts(settings_of(tmp_path), "haproxy"))["haproxy"][0] is CheckVerdict.WARNING


async def test_ray_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, ray_address=f"127.0.0.1:{free_port()}")
    found = await verdicts(settings, "ray", "nodes")
    assert {verdict for verdict, _ in found.values()} == {CheckVerdict.ERROR}
    assert "BROKER_RAY_ADDRESS" in found["ray"][1]
    assert "cannot be reached" in found["nodes"][1]


async def test_check_that_breaks_is_a_finding_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_settings: Settings) -> tuple[CheckVerdict, str]:
        raise KeyError("x")

    monkeypatch.setitem(doctor.CHECKS, "python", broken)
    found = await verdicts(settings_of(tmp_path), "python", "disk")
    assert found["python"] == (CheckVerdict.ERROR, "KeyError: 'x'")
    assert found["disk"][0] is not CheckVerdict.ERROR


async def test_limit_of_open_files_below_the_viewers_is_a_warning(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard not in (resource.RLIM_INFINITY, 0)
    verdict, detail = (await verdicts(settings_of(tmp_path, ws_connections=hard), "file limit"))["file limit"]
    assert verdict is CheckVerdict.WARNING
    assert f"takes {hard - min(1_536, hard // 2)} viewers, not {hard}" in detail
    verdict, detail = (await verdicts(settings_of(tmp_path, ws_connections=1), "file limit"))["file limit"]
    assert (verdict, detail) == (CheckVerdict.OK, f"{hard} open files a process")


async def test_the_models_for_faces_are_loaded(tmp_path: Path) -> None:
    verdict, detail = (await verdicts(settings_of(tmp_path, faces_detector="tiny"), "faces"))["faces"]
    assert (verdict, detail) == (CheckVerdict.OK, "models: built, tiny; they run on CPUExecutionProvider")


async def test_without_models_faces_are_a_warning(tmp_path: Path) -> None:
    verdict, detail = (await verdicts(settings_of(tmp_path, faces_models=str(tmp_path)), "faces"))["faces"]
    assert verdict is CheckVerdict.WARNING
    assert detail.endswith("has no models (*.onnx); face crops go by attention")


async def test_two_runtimes_over_each_other_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def __init__(self, name: str) -> None:
            self.name = name

    both = [Installed("onnxruntime"), Installed("onnxruntime-gpu")]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: both)
    verdict, detail = (await verdicts(settings_of(tmp_path), "faces"))["faces"]
    assert verdict is CheckVerdict.WARNING
    assert "overwrite each other" in detail


@pytest.mark.parametrize(
    ("days", "verdict", "told"),
    [
        (40, CheckVerdict.OK, ", until "),
        (13, CheckVerdict.WARNING, "renew it"),
        (-1, CheckVerdict.ERROR, "expired"),
    ],
)
async def test_certificate_is_read_with_its_key_and_its_end(
    tmp_path: Path, days: int, verdict: CheckVerdict, told: str
) -> None:
    file = str(make_certificate(tmp_path, "live.test", days))
    settings = settings_of(tmp_path, ws_tls_certificate=file, ws_tls_key=file)
    assert told in (detail := (await verdicts(settings, "certificate"))["certificate"])[1]
    assert detail[0] is verdict
    settings = settings_of(tmp_path, http_tls_port=free_port(), http_tls_certificate=file, http_tls_key=file)
    assert told in (detail := (await verdicts(settings, "http certificate"))["http certificate"])[1]
    assert detail[0] is verdict


async def test_certificate_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    assert (await verdicts(settings_of(tmp_path), "certificate"))["certificate"][0] is CheckVerdict.OK
    file, other = (str(make_certificate(tmp_path, name)) for name in ("live.test", "other.test"))
    for key, told in ((other, "certificate and key: "), (str(tmp_path / "none"), "BROKER_WS_TLS_KEY: ")):
        settings = settings_of(tmp_path, ws_tls_certificate=file, ws_tls_key=key)
        found, detail = (await verdicts(settings, "certificate"))["certificate"]
        assert found is CheckVerdict.ERROR
        assert told in detail
