"""`broker.deployments.images`: how Serve runs image replicas."""

import warnings

from broker.settings import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Serve's use of pydantic is its own business
    from broker.deployments.images import build_images, deployment_options

JOINED = Settings(ray_address="auto")


def test_there_is_none_while_nobody_asks_and_the_last_one_leaves_late() -> None:
    scaling = deployment_options(Settings())["autoscaling_config"]
    assert scaling["min_replicas"] == 0
    assert scaling["downscale_delay_s"] >= 300  # each change of the replicas reloads the ingress


def test_on_a_cluster_one_always_runs() -> None:
    assert deployment_options(JOINED)["autoscaling_config"]["min_replicas"] == 1


def test_more_are_started_by_requests_and_never_fewer_than_are_wanted() -> None:
    scaling = deployment_options(Settings(images_replicas_min=3, images_replicas_max=2))["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (3, 3)
    assert scaling["target_ongoing_requests"] == 16


def test_what_waits_is_bounded_and_a_replica_refuses_before_serve_does() -> None:
    from broker.rest.images import REQUESTS

    options = deployment_options(Settings())
    assert options["max_ongoing_requests"] > REQUESTS
    assert 0 < options["max_queued_requests"] < REQUESTS


def test_they_claim_no_gpu() -> None:
    for settings in (Settings(), JOINED):
        assert set(deployment_options(settings)["ray_actor_options"]) == {"num_cpus"}


def test_serve_takes_the_options() -> None:
    build_images(Settings(), "postgresql://127.0.0.1/none")
