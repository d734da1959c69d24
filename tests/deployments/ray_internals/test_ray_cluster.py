import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from broker.deployments.environment import build_environment
from broker.deployments.processes import MARK, end_marked, list_marked
from broker.settings import Settings

pytestmark = pytest.mark.cluster

# In a process of its own: Ray reads its environment when it is imported.
SCRIPT = """
import asyncio, contextlib, os, pathlib, random, signal, subprocess, sys
from broker.deployments.ray_internals import fork_server
scratch = pathlib.Path(sys.argv[1])
first_server = fork_server.import_and_fork(scratch / fork_server.SOCKET)
shared = set(sys.modules)
from broker.deployments.ray_internals import ray_cluster
local = ray_cluster.start_local(scratch, scratch / "log", first_server)
ray_cluster.connect_local(local)
import ray
from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
from ray.experimental.internal_kv import _internal_kv_list

def exported_functions(namespace):
    return _internal_kv_list(b"RemoteFunction:", namespace=namespace)

def helpers():
    titles = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    titles = [title for title in titles if local.address in title and "standby.py" in title]
    return [title for title in titles if "--raylet_socket_name" not in title]

@ray.remote(num_cpus=0)
def read():
    return os.environ.get("GREETING")

@ray.remote(num_cpus=0, max_restarts=-1)
class Worker:
    def process(self):
        return os.getpid()

    def parent(self):
        return os.getppid()

    def chance(self):
        return random.random(), ray.NodeID.from_random().hex()

    def modules(self):
        return set(sys.modules)

    def child(self):
        return subprocess.run(["true"]).returncode

async def have_spare():
    keeping = asyncio.create_task(local.workers.keep_spare())
    async with asyncio.timeout(30):
        while not local.workers.idle():
            await asyncio.sleep(0.1)
    keeping.cancel()

asyncio.run(have_spare())
(spare,) = local.workers.idle()
actors = [Worker.remote()]
assert ray.get(actors[0].process.remote()) == spare, "an actor has another worker than the spare"
asyncio.run(have_spare())
(another,) = local.workers.idle()
ray.kill(actors[0], no_restart=False)
restarted = None
while restarted in (None, spare):
    with contextlib.suppress(ray.exceptions.RayError):
        restarted = ray.get(actors[0].process.remote(), timeout=60)
assert restarted == another, "a restarted actor has another worker than the spare"
assert not exported_functions(KV_NAMESPACE_FUNCTION_TABLE)  # the GCS keeps each for ever

assert ray.get(read.remote()) is None
workers = [Worker.remote() for _ in range(2)]
(server,) = set(ray.get([worker.parent.remote() for worker in workers]))
assert server == first_server.pid
assert b"fork_server" in pathlib.Path(f"/proc/{server}/cmdline").read_bytes()
drawn = ray.get([worker.chance.remote() for worker in workers])
assert all(len(set(each)) == 2 for each in zip(*drawn)), drawn
own = ray.get(workers[0].modules.remote()) - shared
assert not own, f"each worker loads for itself {sorted(own)}"
assert ray.get(workers[0].child.remote()) == 0
assert len(helpers()) == 2, helpers()
assert ray.get(read.options(runtime_env={"env_vars": {"GREETING": "hello"}}).remote(), timeout=60) == "hello"
assert len(helpers()) == 1, helpers()
os.kill(server, signal.SIGKILL)
assert ray.get(Worker.remote().parent.remote(), timeout=60) != server

async def have_successor():
    keeping = asyncio.create_task(local.workers.keep_server())
    async with asyncio.timeout(30):
        while local.workers._server is first_server:
            await asyncio.sleep(0.1)
    keeping.cancel()

asyncio.run(have_successor())
successor = ray.get(Worker.remote().parent.remote(), timeout=60)
assert successor == local.workers._server.pid, "what has taken the server's place forks nothing"
print("done", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_helpers_of_our_own_ray_come_when_they_are_asked_and_end_with_it() -> None:
    mark = f"test-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        Path(directory, "log").mkdir()
        environment, _ = build_environment(Settings(), Path(directory))
        try:
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, directory],
                env=os.environ | environment | {MARK: mark},
                capture_output=True,
                text=True,
                timeout=100,
                start_new_session=True,
            )
            assert (done.stdout, done.returncode) == ("done\n", -signal.SIGKILL), done.stderr[-2000:]
            deadline_s = time.monotonic() + 30
            while left := [pid for pid in list_marked(mark) if b"standby.py" in read_title(pid)]:
                assert time.monotonic() < deadline_s, left
                time.sleep(0.1)
        finally:
            end_marked(mark)


def read_title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
