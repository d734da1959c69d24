"""`broker.deployments.supervisor`, without processes."""

from broker.deployments.supervisor import Restarts


def test_starts_that_fail_wait_ever_longer() -> None:
    restarts = Restarts()
    assert [restarts.next_s(was_ready=False) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_conductor_that_was_ready_is_started_anew_at_once() -> None:
    """However soon it has died, and it forgives the failures before it."""
    restarts = Restarts()
    assert [restarts.next_s(was_ready=True) for _ in range(5)] == [0] * 5
    for _ in range(4):
        restarts.next_s(was_ready=False)
    assert restarts.next_s(was_ready=True) == 0
    assert restarts.next_s(was_ready=False) == 1
