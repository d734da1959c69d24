"""The manifests of `deploy/kuberay` are valid, and the product can run as they say; the image too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from broker.settings import Settings
from tests.deployments.manifests import OVERLAYS, ROOT, SOURCES, digest, digest_of, read_overlay

KUBERNETES = "1.34"
OF_OTHERS = {"RayCluster", "ServiceMonitor"}
OVERLAY = pytest.mark.parametrize("overlay", OVERLAYS)


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with names that it does not know refused: a cluster would drop them without a word."""
    closed = {name: close(value) if isinstance(value, dict) else value for name, value in schema.items()}
    if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
        closed.setdefault("additionalProperties", False)
    return closed


@cache
def raycluster() -> jsonschema.Draft202012Validator:
    schema = json.loads((Path(__file__).parent / "kuberay" / "raycluster.json").read_text())
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    return jsonschema.Draft202012Validator(close(schema))


def find(overlay: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in read_overlay(overlay) if each["kind"] == kind]


def cluster_of(overlay: str) -> dict[str, Any]:
    (cluster,) = find(overlay, "RayCluster")
    spec: dict[str, Any] = cluster["spec"]
    return spec


def pods(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and specifications of the pods of the product."""
    cluster = cluster_of(overlay)
    yield "head", cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"]["spec"]
    for deployment in find(overlay, "Deployment"):
        yield "conductor", deployment["spec"]["template"]["spec"]


@OVERLAY
def test_what_is_rendered_is_made_of_what_is_there(overlay: str) -> None:
    assert digest_of(overlay) == digest(), "run `make manifests`"


@OVERLAY
def test_manifests_have_the_fields_that_kubernetes_and_kuberay_know(overlay: str) -> None:
    resources = read_overlay(overlay)
    for resource in resources:
        if resource["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    (cluster,) = find(overlay, "RayCluster")
    raycluster().validate(cluster)


def test_the_schema_refuses_a_field_that_kuberay_does_not_know() -> None:
    (cluster,) = find("production", "RayCluster")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(jsonschema.ValidationError, match="livenessProb"):
        raycluster().validate(cluster)


def test_nodes_get_the_same_environment_as_without_kubernetes() -> None:
    assert (SOURCES / "base" / "node.env").read_text() == (ROOT / "deploy" / "node.env").read_text()


@OVERLAY
def test_settings_are_ones_that_the_product_takes(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment,) = [
        each["data"]
        for each in find(overlay, "ConfigMap")
        if each["metadata"]["name"].startswith("broker-settings")
    ]
    for name in [name for name in os.environ if name.startswith("BROKER_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert settings.bind_host == "node"
    assert settings.operations_port == 8050


@OVERLAY
def test_pods_are_confined(overlay: str) -> None:
    for name, pod in pods(overlay):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "memory" in container["resources"]["limits"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


@OVERLAY
def test_pods_have_no_variables_of_services(overlay: str) -> None:
    """That of the service `broker-http` would be `BROKER_HTTP_PORT=tcp://…`."""
    assert [name for name, pod in pods(overlay) if pod["enableServiceLinks"] is not False] == []


@OVERLAY
def test_writable_directories_belong_to_the_product_alone(overlay: str) -> None:
    """New volumes are writable by everybody, and their parts are made by an init container."""
    for name, pod in pods(overlay):
        made = {word.rpartition("/")[2] for word in pod["initContainers"][0]["command"] if "/" in word}
        mounts = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "writable"]
        assert {each["mountPath"]: each["subPath"] for each in mounts} == {
            "/tmp": "tmp",
            "/var/lib/broker": "data",
            "/run/broker": "run",
        }, name
        assert {each["subPath"] for each in mounts} == made


@OVERLAY
def test_secrets_are_references(overlay: str) -> None:
    for _, pod in pods(overlay):
        for each in pod["containers"][0]["env"]:
            if any(word in each["name"] for word in ("PASSWORD", "TOKEN", "DATABASE")):
                assert "secretKeyRef" in each["valueFrom"]
    if overlay != "laptop":
        assert not find(overlay, "Secret")


@OVERLAY
def test_only_gateway_nodes_have_work(overlay: str) -> None:
    cluster = cluster_of(overlay)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in cluster["workerGroupSpecs"]:
        assert group["rayStartParams"].get("num-cpus") == (None if group["groupName"] == "gateways" else "0")
    assert not find(overlay, "RayService")
    assert cluster["rayVersion"] == _version_of("ray")


@OVERLAY
def test_services_and_policies_mean_pods_that_are_there(overlay: str) -> None:
    labels = {
        "gateway": cluster_of(overlay)["workerGroupSpecs"][0]["template"]["metadata"]["labels"],
        "head": cluster_of(overlay)["headGroupSpec"]["template"]["metadata"]["labels"],
    }
    assert {name: each["app.kubernetes.io/component"] for name, each in labels.items()} == {
        name: name for name in labels
    }
    ports = {
        each["containerPort"]
        for each in cluster_of(overlay)["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["ports"]
    }
    for service in find(overlay, "Service"):
        if service["metadata"]["name"].startswith("broker-"):
            assert service["spec"]["selector"].items() <= labels["gateway"].items()
            assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    for monitor in find(overlay, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [
            each for each in find(overlay, "Service") if wanted <= each["metadata"]["labels"].items()
        ]
        named = {each["name"] for each in service["spec"]["ports"]}
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= named


@pytest.mark.parametrize("overlay", ["production", "gpu"])
def test_budgets_say_what_counts_for_pods_of_a_raycluster(overlay: str) -> None:
    """A budget of `maxUnavailable`, or of per cent, needs a controller that Kubernetes knows."""
    budgets = {each["metadata"]["name"]: each["spec"] for each in find(overlay, "PodDisruptionBudget")}
    assert [name for name, each in budgets.items() if not isinstance(each["minAvailable"], int)] == []
    assert [name for name, each in budgets.items() if "maxUnavailable" in each] == []
    gateways = cluster_of(overlay)["workerGroupSpecs"][0]
    assert budgets["broker-gateways"]["minAvailable"] < gateways["minReplicas"]


@OVERLAY
def test_pods_have_time_to_drain(overlay: str) -> None:
    drains = [(name, pod) for name, pod in pods(overlay) if "lifecycle" in pod["containers"][0]]
    assert [name for name, _ in drains] == ["gateways"]
    assert drains[0][1]["terminationGracePeriodSeconds"] > 60  # what leave.sh says to Ray


def _version_of(package: str) -> str:
    lines = (ROOT / "deploy" / "docker" / "requirements.lock").read_text().splitlines()
    (version,) = [
        line.split("==")[1].split()[0] for line in lines if line.startswith((f"{package}==", f"{package}["))
    ]
    return version


# What stands in for Ray and the product writes down what it is called with; `broker` runs until it is ended.
PROGRAMS = {
    "ray": 'echo "ray $1" >> "$LOG"',
    "broker": "trap 'echo term >> \"$LOG\"; exit 0' TERM\ntrap 'echo hup >> \"$LOG\"' HUP\n"
    'echo "broker $* at $BROKER_RAY_ADDRESS" >> "$LOG"\nwhile :; do sleep 0.02; done',
}


class Conductor:
    """`conductor.sh` among programs that stand in for Ray and `broker`."""

    def __init__(self, directory: Path) -> None:
        self.log, self.stop = directory / "log", directory / "stop"
        for name, text in PROGRAMS.items():
            (directory / name).write_text(f"#!/bin/bash\n{text}\n")
            (directory / name).chmod(0o755)
        self.process = subprocess.Popen(
            # A shell cannot trap what its parent ignores, as `nohup` does; in a pod nothing is ignored.
            ["env", "--default-signal=HUP", "/bin/bash", SOURCES / "base" / "conductor.sh"],
            env={
                "PATH": f"{directory}:/usr/bin:/bin",
                "LOG": str(self.log),
                "STOP_FILE": str(self.stop),
                "BROKER_RAY_ADDRESS": "head:6379",
                "POD_IP": "127.0.0.1",
            },
        )
        self.until("broker up at head:6379")

    def until(self, line: str) -> None:
        deadline_s = time.monotonic() + 60
        while not self.log.exists() or line not in self.lines():
            assert time.monotonic() < deadline_s, line
            time.sleep(0.01)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    running = Conductor(tmp_path)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end()


def test_the_end_of_the_conductors_pod_stops_nothing(conductor: Conductor) -> None:
    """`broker up` is killed: told to end, it would end the product. See test_joined for what goes on then."""
    conductor.end()
    assert conductor.lines() == ["ray start", "broker up at head:6379", "ray stop"]
    assert conductor.process.returncode == 128 + signal.SIGKILL


def test_the_product_stops_where_that_is_wanted(conductor: Conductor) -> None:
    conductor.stop.touch()
    conductor.end()
    assert conductor.lines() == ["ray start", "broker up at head:6379", "term", "ray stop"]
    assert conductor.process.returncode == 0


def test_an_update_is_passed_on(conductor: Conductor) -> None:
    conductor.process.send_signal(signal.SIGHUP)
    conductor.until("hup")
    assert conductor.process.poll() is None


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run([hadolint, ROOT / "deploy/docker/Dockerfile"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_image_has_what_the_tests_ran_with() -> None:
    """Every package of the image is locked to the version that is locked for the tests."""

    def locked(path: Path) -> set[str]:
        return {line.split()[0] for line in path.read_text().splitlines() if "==" in line and line[0] != " "}

    image = locked(ROOT / "deploy/docker/requirements.lock")
    assert image
    assert image <= locked(ROOT / "requirements.lock")


def test_compose_and_manifests_run_the_same_release() -> None:
    compose = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text())
    image = compose["services"]["broker"]["image"]
    assert {pod["containers"][0]["image"] for _, pod in pods("production")} == {image}
    broker = compose["services"]["broker"]
    assert (broker["read_only"], broker["cap_drop"]) == (True, ["ALL"])
