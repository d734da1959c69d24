import subprocess
import sys

SCRIPT = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted(sys.modules))
"""


def list_imports(module: str) -> set[str]:
    command = [sys.executable, "-c", SCRIPT, module]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_ray_is_imported_by_whoever_forks_the_fork_server_and_not_before() -> None:
    held = list_imports("broker.deployments.conductor")
    assert "broker.deployments.ray_internals.fork_server" in held
    assert "ray" not in held


def test_a_conductor_that_forks_nothing_does_not_hold_what_only_the_doors_and_slots_need() -> None:
    held = list_imports("broker.deployments.parts")
    assert "broker.deployments.serve_app" in held
    assert not held & {
        "broker.rest.app",
        "broker.gateway.gateway",
        "broker.resources.catalogue",
        "broker.owners.owner",
        "broker.voting.counting.counter",
        "asyncpg",
        "httpx",
        "jwt",
    }
