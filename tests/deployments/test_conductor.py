import subprocess
import sys

SCRIPT = """
import sys
import broker.deployments.parts
print(*sorted(sys.modules))
"""


def test_the_conductor_does_not_hold_what_only_the_doors_and_slots_need() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    held = set(done.stdout.split())
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
