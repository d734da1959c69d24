"""`serve_pace`: what it changes, and that the installed Ray Serve can be changed."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from broker import timers
from broker.deployments.ray_internals.serve_pace import (
    ask_less_for_nodes,
    count_before_telling,
    hurry_while_changing,
)

# In a process that ends, since it changes Serve.
_INSTALLED = """
from ray.serve._private import application_state, deployment_state
from ray.serve._private import cluster_node_info_cache, controller, router
from ray.serve.schema import ApplicationStatus
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
assert "_application_states" in application_state.ApplicationStateManager.update.__code__.co_names
assert isinstance(application_state.ApplicationState.status, property)
assert set(serve_pace._CHANGING) < set(ApplicationStatus)

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

    def __init__(self, *wanted: int, statuses: Sequence[str] = ("RUNNING",)) -> None:
        states = {at: _state(wanted=count) for at, count in enumerate(wanted)}
        self.deployment_state_manager = SimpleNamespace(_deployment_states=states)
        applications = {at: SimpleNamespace(status=status) for at, status in enumerate(statuses)}
        self.application_state_manager = SimpleNamespace(_application_states=applications)

    async def run_control_loop_step(self, *arguments: Any) -> None:
        assert arguments == (1.0, 2.0, 3)


def _state(*, wanted: int) -> SimpleNamespace:
    return SimpleNamespace(target_num_replicas=wanted, get_running_replica_ids=list)


class Hurry:
    """The pause after a round, of a Serve that rests for half a second."""

    def __init__(self, moment_s: float) -> None:
        class Controller(Rounds):
            pass

        self._controller = Controller
        self._serve = SimpleNamespace(ServeController=Controller, CONTROL_LOOP_INTERVAL_S=0.5)
        hurry_while_changing(self._serve, moment_s)

    def pause_after(self, *wanted: int, statuses: Sequence[str] = ("RUNNING",)) -> float:
        asyncio.run(self._controller(*wanted, statuses=statuses).run_control_loop_step(1.0, 2.0, 3))
        pause_s: float = self._serve.CONTROL_LOOP_INTERVAL_S
        return pause_s


def test_rounds_are_short_for_as_long_as_a_replica_is_missing() -> None:
    hurry = Hurry(moment_s=0)
    pauses = [hurry.pause_after(*wanted) for wanted in ((0, 0), (0, 1), (0, 1), (0, 0))]
    assert pauses == [0.5, 0.1, 0.1, 0.5]


def test_rounds_are_short_while_an_application_starts_or_stops_and_before_there_is_one() -> None:
    hurry = Hurry(moment_s=0)
    statuses = ((), ("RUNNING",), ("RUNNING", "DEPLOYING"), ("DEPLOY_FAILED", "UNHEALTHY"), ("DELETING",))
    assert [hurry.pause_after(statuses=each) for each in statuses] == [0.1, 0.5, 0.1, 0.5, 0.1]


def test_rounds_stay_short_for_a_moment() -> None:
    hurry = Hurry(moment_s=60.0)
    assert [hurry.pause_after(wanted) for wanted in (0, 1, 0)] == [0.5, 0.1, 0.1]


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

    serve = SimpleNamespace(ServeController=Controller, CONTROL_LOOP_INTERVAL_S=0.5)
    hurry_while_changing(serve, moment_s=0)
    ask_less_for_nodes(SimpleNamespace(ClusterNodeInfoCache=Nodes))
    controller = Controller()

    def asked_after(wanted: int) -> int:
        controller.deployment_state_manager._deployment_states[0] = _state(wanted=wanted)
        asyncio.run(controller.run_control_loop_step(1.0, 2.0, 3))
        return controller.cluster_node_info_cache.asked

    assert [asked_after(wanted) for wanted in (0, 0, 1, 1, 1, 0)] == [1, 1, 1, 2, 3, 4]


def test_another_serve_is_left_alone() -> None:
    serve = SimpleNamespace(ServeController=object, RouterMetricsManager=object)
    hurry_while_changing(serve)
    count_before_telling(serve)
    ask_less_for_nodes(serve)
    assert vars(serve) == {"ServeController": object, "RouterMetricsManager": object}
