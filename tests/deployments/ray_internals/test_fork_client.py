"""`broker.deployments.ray_internals.fork_client`: which commands are forked, and how they are read."""

import json

from broker.deployments.ray_internals.fork_client import JOB, build_fork_request

COMMAND = ["/usr/bin/python3", "/ray/setup_worker.py", "-s", "/ray/default_worker.py", "--node-id=1"]
ENVIRONMENT = {"RAY_JOB_ID": JOB, "HOME": "/root"}


def command(**context: object) -> list[str]:
    """As Ray writes it for a worker with a runtime environment."""
    added = ["--language=PYTHON", f"--serialized-runtime-env-context={json.dumps(context)}"]
    return [*COMMAND, *added, "--runtime-env-hash=7"]


def test_the_worker_has_its_script_with_its_arguments() -> None:
    words = ["/ray/default_worker.py", "--node-id=1"]
    assert build_fork_request(COMMAND, ENVIRONMENT) == (words, ENVIRONMENT)
    assert build_fork_request(command(), ENVIRONMENT) == ([*words, "--runtime-env-hash=7"], ENVIRONMENT)


def test_variables_of_its_runtime_environment_are_added() -> None:
    request = build_fork_request(command(env_vars={"GREETING": "hello"}), ENVIRONMENT)
    assert request is not None
    assert request[1] == ENVIRONMENT | {"GREETING": "hello"}


def test_what_a_fork_cannot_be_is_started_by_its_command() -> None:
    assert build_fork_request(COMMAND, ENVIRONMENT | {"RAY_JOB_ID": "02000000"}) is None
    assert build_fork_request(COMMAND, {}) is None
    assert build_fork_request(command(command_prefix=["nice"]), ENVIRONMENT) is None
    other = command(py_executable="/opt/python/bin/python3")
    assert build_fork_request(other, ENVIRONMENT) is None
