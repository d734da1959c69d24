"""`serve_clock`: a time of day that goes on when the clock is set, and that the installed Serve takes it."""

import subprocess
import sys
from types import ModuleType

import pytest

from broker.deployments.ray_internals.serve_clock import make_steady

# In a process that ends, since it changes Serve.
_INSTALLED = """
import time
from ray.serve._private import autoscaling_state, controller, deployment_state, haproxy, proxy_state, router
from broker.deployments.ray_internals import serve_clock

serve_clock.keep_steady()
for module in (autoscaling_state, controller, deployment_state, haproxy, router):
    assert module.time is not time, module
    assert abs(module.time.time() - time.time()) < 5
    assert module.time.monotonic is time.monotonic and module.time.sleep is time.sleep
wall, time.time = time.time, lambda: 0.0
assert abs(deployment_state.time.time() - wall()) < 5
check = deployment_state.ActorReplicaWrapper._should_start_new_health_check
assert {"time", "_last_health_check_time"} < set(check.__code__.co_names)
# The managers of the ingress are looked at by this timer.
assert abs(proxy_state.Timer().time() - wall()) < 5
"""


class SetClock(ModuleType):
    """A `time` whose clocks a test sets."""

    wall_s = 1_700_000_000.0
    steady_s = 100.0

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.steady_s


@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0])
def test_time_of_day_goes_on_when_the_clock_is_set(step_s: float) -> None:
    clock = SetClock("time")
    vars(clock).update(time=clock.time, monotonic=clock.monotonic)
    steady = make_steady(clock)
    clock.wall_s += step_s
    clock.steady_s += 7.0
    assert steady.time() == pytest.approx(1_700_000_007.0)


def test_installed_serve_goes_by_it() -> None:
    subprocess.run([sys.executable, "-c", _INSTALLED], check=True)
