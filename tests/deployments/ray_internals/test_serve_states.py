"""`serve_states`: what it takes from the installed Ray Serve, and what it does without."""

import subprocess
import sys

# In a process of its own: to import Ray Serve warns of what pydantic will remove.
_INSTALLED = """
import inspect
from ray.serve import context
from ray.serve._private.application_state import ApplicationStatusInfo
from ray.serve._private.client import ServeControllerClient

assert list(inspect.signature(ServeControllerClient.get_serve_status).parameters) == ["self", "name"]
assert "raise_if_no_controller_running" in inspect.signature(context._get_global_client).parameters
assert {"status", "message"} <= set(ApplicationStatusInfo.__dataclass_fields__)
"""

_WITHOUT = """
from types import SimpleNamespace
from ray import serve
from ray.serve import context
from ray.serve.schema import ApplicationStatus
from broker.deployments.ray_internals.serve_states import find_state

known = SimpleNamespace(status=ApplicationStatus.RUNNING, message="well")
context._get_global_client = lambda **_: object()
serve.status = lambda: SimpleNamespace(applications={"broker": known})
assert find_state("broker") == (ApplicationStatus.RUNNING, "well")
assert find_state("another") == (ApplicationStatus.NOT_STARTED, "")
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_serve_that_is_installed_is_as_expected() -> None:
    run(_INSTALLED)


def test_another_serve_is_asked_for_everything() -> None:
    run(_WITHOUT)
