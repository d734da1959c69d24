"""How fast Ray Serve starts and stops, and how little it does at rest.

At rest Serve's controller looks around every two seconds, and its timers may be late, so that an idle product
sleeps (`environment`, `worker_setup`). A replica takes four such rounds to start: to be wanted, made,
initialised and told of. And whoever asks a deployment that has none tells the controller at once, but with
figures that were taken before, so that nothing happens until they are sent again, two seconds later.

Where workers are forked, Serve is changed before (`fork_server`): while something changes, and for a moment
after it, the controller looks around as often as Serve does by itself, and on time; and a request that finds
no replica is counted before the figures are sent. At rest it asks for the nodes every ten seconds and not in
each round: Ray of `broker up` has one. Where Serve is made otherwise than this expects it stays as it is, and
takes longer.

Names used: `ServeController.run_control_loop_step`, `CONTROL_LOOP_INTERVAL_S`,
`deployment_state_manager._deployment_states`, `application_state_manager._application_states` and
`cluster_node_info_cache` of `ray.serve._private.controller`; `ClusterNodeInfoCache.update` of
`ray.serve._private.cluster_node_info_cache`;
`RouterMetricsManager.should_send_scaled_to_zero_optimized_push` and `_add_autoscaling_metrics_point` of
`ray.serve._private.router`.
Probe: each is looked for when the fork server starts; a test says when one is gone.
Fall-back: Serve stays as it is.
Gain: the first image after 2.1 to 2.9 s on a busy machine of two cores, and not after 11 to 19; `broker up`
after 9 s, and not after 15.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from broker import timers
from broker.deployments.worker_setup import LATE_S

_ROUND_S = 0.1  # Serve's own
_NODES_S = 10.0
_MOMENT_S = 3.0  # of short rounds after the last change: at a start the next application comes within it
_CHANGING = ("DEPLOYING", "DELETING")
_ASKED = "_broker_asked_s"


def hasten() -> None:
    """Change Serve in this process and those that it forks."""
    from ray.serve._private import cluster_node_info_cache, controller, router

    count_before_telling(router)
    hurry_while_changing(controller)
    ask_less_for_nodes(cluster_node_info_cache)


def count_before_telling(router: Any) -> None:
    """Have the figures of whoever asks a deployment without replicas hold the request that asks."""
    kind: Any = getattr(router, "RouterMetricsManager", None)
    is_first = getattr(kind, "should_send_scaled_to_zero_optimized_push", None)
    if is_first is None or not hasattr(kind, "_add_autoscaling_metrics_point"):
        return

    def is_first_counted(self: Any, curr_num_replicas: int) -> bool:
        is_told: bool = is_first(self, curr_num_replicas)
        if is_told:
            self._add_autoscaling_metrics_point()
        return is_told

    kind.should_send_scaled_to_zero_optimized_push = is_first_counted


def hurry_while_changing(controller: Any, moment_s: float = _MOMENT_S) -> None:
    """Have the controller's rounds be short while applications or numbers of replicas change, and after."""
    kind: Any = getattr(controller, "ServeController", None)
    step: Callable[..., Awaitable[None]] | None = getattr(kind, "run_control_loop_step", None)
    rest_s: float | None = getattr(controller, "CONTROL_LOOP_INTERVAL_S", None)
    if step is None or rest_s is None:
        return
    is_hurried = False
    hurried_until_s = 0.0

    async def step_in_time(self: Any, *arguments: Any) -> None:
        nonlocal is_hurried, hurried_until_s
        await step(self, *arguments)
        now_s = time.monotonic()
        is_changing = _is_changing(self)
        if is_changing:
            hurried_until_s = now_s + moment_s
        if is_hurried is not (is_changing or now_s < hurried_until_s):
            is_hurried = not is_hurried
            controller.CONTROL_LOOP_INTERVAL_S = min(_ROUND_S, rest_s) if is_hurried else rest_s
            timers.allow_late(timers.EXACT_S if is_hurried else LATE_S)  # the control loop's own thread
        if is_hurried and (nodes := getattr(self, "cluster_node_info_cache", None)):
            vars(nodes).pop(_ASKED, None)

    kind.run_control_loop_step = step_in_time


def ask_less_for_nodes(cache: Any) -> None:
    """Have the nodes be asked for every ten seconds, and in each round that is hurried."""
    kind: Any = getattr(cache, "ClusterNodeInfoCache", None)
    update: Callable[[Any], None] | None = getattr(kind, "update", None)
    if update is None:
        return

    def update_seldom(self: Any) -> None:
        now_s = time.monotonic()
        if now_s - vars(self).get(_ASKED, -_NODES_S) >= _NODES_S:
            update(self)
            vars(self)[_ASKED] = now_s

    kind.update = update_seldom


def _is_changing(controller: Any) -> bool:
    """Whether it has applications to start or to stop, or too few replicas; it has none when Ray starts."""
    try:
        applications = controller.application_state_manager._application_states.values()
        deployments = controller.deployment_state_manager._deployment_states.values()
        return (
            not applications
            or any(application.status in _CHANGING for application in applications)
            or any(len(state.get_running_replica_ids()) < state.target_num_replicas for state in deployments)
        )
    except AttributeError:
        return False
