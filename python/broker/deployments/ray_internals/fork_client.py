"""Asks the fork server for a worker; replaces the command that starts one. Run by its path.

Arguments: the server's socket, then the command: Python, Ray's script that sets a worker up, options of
Python, the worker's script and its arguments. Where the server does not answer, or the worker needs what a
fork cannot give it, the command runs here as it was written.

It imports as little as it can: it runs once for each worker.

Names used: Ray's command for a worker: its order, `--serialized-runtime-env-context`, `--language`,
`py_executable`, `env_vars` and what `_NOT_FORKED` names; `RAY_JOB_ID`.
Probe: each command is looked at when it comes.
Fall-back: the command runs as it was written.
Gain: that of `fork_server`.
"""

import json
import os
import socket
import sys

JOB = "01000000"
"""The only job of a Ray of our own: that of its conductor."""

_ANSWER_S = 30.0  # the server may still be importing
_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
_PYTHON_OPTIONS = ("-S", "-s")
_NOT_FORKED = ("command_prefix", "override_worker_entrypoint", "java_jars")

ForkRequest = tuple[list[str], dict[str, str]]
"""The worker's script with its arguments, and the environment."""


def main() -> None:
    """Hand the command over, or run it."""
    path, command = sys.argv[1], sys.argv[2:]
    request = build_fork_request(command, dict(os.environ))
    if request is None or not _is_forked(path, request):
        os.execv(command[0], command)  # noqa: S606 - the raylet's own command, which has no shell either


def build_fork_request(command: list[str], environment: dict[str, str]) -> ForkRequest | None:
    """What the server is to fork; None for a worker that must be started by its command.

    Does what Ray's script does that sets a worker up (`ray._private.runtime_env.context`).
    """
    if environment.get("RAY_JOB_ID") != JOB:
        return None
    words = []
    for word in command[2:]:
        if word.startswith(_CONTEXT):
            context = json.loads(word.removeprefix(_CONTEXT) or "{}")
            python = context.get("py_executable") or command[0]
            if python != command[0] or any(context.get(name) for name in _NOT_FORKED):
                return None
            environment = environment | (context.get("env_vars") or {})
        elif word not in _PYTHON_OPTIONS and not word.startswith(_LANGUAGE):
            words.append(word)
    return words, environment


def _is_forked(path: str, request: ForkRequest) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_ANSWER_S)
            server.connect(path)
            message = json.dumps(request).encode()
            sent = socket.send_fds(server, [message], [0, 1, 2])
            server.sendall(message[sent:])
            server.shutdown(socket.SHUT_WR)
            return server.recv(1) == b"+"
    except OSError:
        return False


if __name__ == "__main__":
    main()
