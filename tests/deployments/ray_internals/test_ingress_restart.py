"""`ingress_restart`, with the installed Ray Serve and a real HAProxy."""

import subprocess
import sys
import tempfile
from pathlib import Path

from broker.deployments.ports import free_port
from broker.deployments.ray_internals.haproxy import install_start_script
from broker.settings import child_environment
from tests.deployments.ingress_stage import KEY

# In a process that ends, since it changes Serve.
_LIFE = """
import asyncio, sys
from ray.serve._private.haproxy import HAProxyApi, HAProxyConfig
from broker.deployments.ray_internals import ingress_restart

waits = HAProxyApi._wait_for_hap_availability
ingress_restart.hasten()
assert HAProxyApi._wait_for_hap_availability is not waits

begin, generate = HAProxyApi._start_and_wait_for_haproxy, HAProxyApi._generate_config_file_internal
under_way = 0
written = []

async def begin_noted(self, *arguments, **options):
    global under_way
    under_way += 1
    try:
        return await begin(self, *arguments, **options)
    finally:
        under_way -= 1

def generate_noted(self):
    written.append(under_way)
    generate(self)

HAProxyApi._start_and_wait_for_haproxy = begin_noted
HAProxyApi._generate_config_file_internal = generate_noted

async def main(directory):
    api = HAProxyApi(
        HAProxyConfig(
            socket_path=f"{directory}/admin",
            server_state_base=directory,
            server_state_file=f"{directory}/state",
            is_head=True,
        ),
        config_file_path=f"{directory}/haproxy.cfg",
    )
    try:
        await api.start()
        first = api._proc
        first.kill()
        while api._proc is first:
            await asyncio.sleep(0.02)
        second = api._proc
        assert await api._get_running_pid() == second.pid
        await api.reload()
        third = api._proc
        await second.wait()  # replaced on purpose: nothing follows
        third.kill()
        while not under_way:
            await asyncio.sleep(0.001)
        await api.reload()
        assert written == [0] * 5, written  # a configuration of Ray's, in the place that a start reads
        await api.stop()
        await asyncio.sleep(1)
        assert api._proc is None and api._spawn_seq == 5, api._spawn_seq
        print("five processes")
    finally:
        await api.stop()

asyncio.run(main(sys.argv[1]))
"""


def test_a_process_that_dies_is_started_again_and_one_that_is_ended_is_not() -> None:
    with tempfile.TemporaryDirectory(prefix="bi-", dir="/tmp") as directory:
        given = {
            "BROKER_INGRESS_KEY": KEY,
            "BROKER_HTTP_PORT": str(free_port()),
            "BROKER_OPS_PORT": str(free_port()),
            "BROKER_WS_PORT": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", _LIFE, directory],
            env=child_environment(given) | install_start_script(Path(directory)),
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert (done.returncode, done.stdout) == (0, "five processes\n"), done.stderr
