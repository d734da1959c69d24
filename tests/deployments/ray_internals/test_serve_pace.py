"""`serve_pace`: what it changes, and that the installed Ray Serve can be changed."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker import timers
from broker.deployments.ray_internals.serve_pace import (
    ask_less_for_nodes,
    count_before_telling,
    hurry_while_missing,
)

# In a process that ends, since it changes Serve.
_INSTALLED = """
from ray.serve._private import cluster_node_info_cache, controller, deployment_state, router
from broker.deployments.ray_internals import serve_pace

before = controller.ServeController.run_control_loop_step
update = cluster_node_info_cache.ClusterNodeInfoCache.update
assert "cluster_node_info_cache" in before.__code__.co_names
serve_pace.hasten()
assert cluster_node_info_cache.ClusterNodeInfoCache.update is not update
assert controller.ServeController.run_control_loop_step is not before
assert "CONTROL_LOOP_INTERVAL_S" in controller.ServeController.run_control_loop.__code__.co_names
assert "run_control_loop_step" in controller.ServeController.run_control_loop.__code__.co_names
state = deployment_state.DeploymentState
assert callable(state.get_running_replica_ids) and isinstance(state.target_num_replicas, property)
assert "_deployment_states" in deployment_state.DeploymentStateManager.update.__code__.co_names

figures = router.RouterMetricsManager
asking = figures.wrap_queued_request.__wrapped__.__code__.co_names
assert "should_send_scaled_to_zero_optimized_push" in asking

class Figures:
    should_send = figures.should_send_scaled_to_zero_optimized_push
    autoscaling_config = object()
    num_queued_requests = 1
    counted = 0

    def _add_autoscaling_metrics_point(self):
        self.counted += 1

asked = Figures()
assert not asked.should_send(curr_num_replicas=1) and asked.counted == 0
assert asked.should_send(curr_num_replicas=0) and asked.counted == 1
"""


@pytest.fixture(autouse=True)
def exact_timers() -> Iterator[None]:
    """What is tried here lets this thread's timers be late, and those of all tests after it."""
    yield
    timers.allow_late(timers.EXACT_S)


def test_the_serve_that_is_installed_is_as_expected() -> None:
    done = subprocess.run([sys.executable, "-c", _INSTALLED], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


class Rounds:
    """A controller that does nothing in its rounds."""

    def __init__(self, *wanted: int) -> None:
        states = {at: _state(wanted=count) for at, count in enumerate(wanted)}
        self.deployment_state_manager = SimpleNamespace(_deployment_states=states)

    async def run_control_loop_step(self, *arguments: Any) -> None:
        assert arguments == (1.0, 2.0, 3)


def _state(*, wanted: int) -> SimpleNamespace:
    return SimpleNamespace(target_num_replicas=wanted, get_running_replica_ids=list)


def test_rounds_are_short_for_as_long_as_a_replica_is_missing() -> None:
    class Controller(Rounds):
        pass

    serve = SimpleNamespace(ServeController=Controller, CONTROL_LOOP_INTERVAL_S=0.5)
    hurry_while_missing(serve)

    def pause_after(*wanted: int) -> float:
        asyncio.run(Controller(*wanted).run_control_loop_step(1.0, 2.0, 3))
        pause_s: float = serve.CONTROL_LOOP_INTERVAL_S
        return pause_s

    assert [pause_after(0, 0), pause_after(0, 1), pause_after(0, 1), pause_after(0, 0)] == [
        0.5,
        0.1,
        0.1,
        0.5,
    ]


def test_nodes_are_asked_for_in_hurried_rounds_and_seldom_else() -> None:
    class Nodes:
        asked = 0

        def update(self) -> None:
            self.asked += 1

    class Controller(Rounds):
        def __init__(self) -> None:
            super().__init__(0)
            self.cluster_node_info_cache = Nodes()

        async def run_control_loop_step(self, *arguments: Any) -> None:
            self.cluster_node_info_cache.update()

    hurry_while_missing(SimpleNamespace(ServeController=Controller, CONTROL_LOOP_INTERVAL_S=0.5))
    ask_less_for_nodes(SimpleNamespace(ClusterNodeInfoCache=Nodes))
    controller = Controller()

    def asked_after(wanted: int) -> int:
        controller.deployment_state_manager._deployment_states[0] = _state(wanted=wanted)
        asyncio.run(controller.run_control_loop_step(1.0, 2.0, 3))
        return controller.cluster_node_info_cache.asked

    assert [asked_after(wanted) for wanted in (0, 0, 1, 1, 1, 0)] == [1, 1, 1, 2, 3, 4]


def test_another_serve_is_left_alone() -> None:
    serve = SimpleNamespace(ServeController=object, RouterMetricsManager=object)
    hurry_while_missing(serve)
    count_before_telling(serve)
    ask_less_for_nodes(serve)
    assert vars(serve) == {"ServeController": object, "RouterMetricsManager": object}
