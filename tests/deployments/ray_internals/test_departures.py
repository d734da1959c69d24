"""What a replica of Ray Serve that is to end tells HAProxy."""

import warnings

import pytest

from broker.deployments.ray_internals.departures import pass_checks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Serve's use of pydantic is its own business
    from ray.serve._private.replica import Replica


class PassingReplica(Replica):
    """Ray Serve's, with no more of it than health checks need."""

    def __init__(self, *, is_healthy: bool, is_ending: bool) -> None:
        self._healthy = is_healthy
        self._shutting_down = is_ending


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("is_healthy", "is_ending", "passes"),
    [(True, False, True), (True, True, True), (False, False, False), (False, True, False)],
)
async def test_only_an_unhealthy_replica_fails_health_checks(
    is_healthy: bool, is_ending: bool, passes: bool
) -> None:
    pass_checks(PassingReplica)
    replica = PassingReplica(is_healthy=is_healthy, is_ending=is_ending)
    assert (await replica._dataplane_health_check())[0] == passes


@pytest.mark.parametrize("kind", [None, object, type("Other", (), {"_dataplane_health_check": bool})])
def test_another_ray_is_refused(kind: type | None) -> None:
    with pytest.raises(RuntimeError, match="_dataplane_health_check"):
        pass_checks(kind)
