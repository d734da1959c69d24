"""The HTTP API as an application of Ray Serve."""

import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus

from broker.concurrency.deadline import until_deadline
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.deployments.environment import RAY_HOST
from broker.deployments.faces import APPLICATION as FACES
from broker.deployments.faces import faces_target
from broker.deployments.images import build_images
from broker.deployments.ingress import APPLICATION, IMAGES
from broker.deployments.ray_internals.serve_control import is_behind_haproxy
from broker.deployments.ray_internals.serve_states import find_state
from broker.deployments.replica import Replica, bind
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.rest.door import Door

_REQUESTS = 1_000  # of one replica at a time; over it Serve answers 503
_SPARED = 2
_BUSY = 32  # requests of one replica at a time, over which Serve starts another where it may
_LOGS = {"log_level": "WARNING", "enable_access_log": False}
_CPUS = 0.01  # a claim, not a limit: replicas must fit beside everything else on two cores

_LOOK_S = 0.2  # between two looks at a start
_START_S = 60.0  # of replicas for images, where there are some always
_FAULT_CHARACTERS = 200
_GONE_S = 20.0  # for the image proxy to end, when the API has; else the ingress of every node would stay
_END_S = 8  # for Serve's own second, `ray_internals.departures`, and the requests that run then

# Timers of a replica: its server looks around ten times a second, its requests only time out.
_LATE_S = 0.3


class ApiReplica(Replica):
    """A replica of the HTTP API."""

    kind = "api"
    late_s = _LATE_S

    async def open(self, stack: AsyncExitStack) -> "Door":
        """All services, and the API over them."""
        from broker.deployments.compose import open_services
        from broker.deployments.gateway_watch import watch_gateway
        from broker.resources.catalogue import build_registry
        from broker.rest.app import build_app

        opened = await open_services(self._settings, self._dsn, self.kind)
        stack.push_async_callback(opened.close)
        if self._settings.ray_address:  # else the gateway ends with the conductor, which watches over it
            stack.push_async_callback(cancel_and_wait, keep_running("gateway watch", watch_gateway))
        app = build_app(opened.services, build_registry())
        opened.exporter.add(app.figures)
        return app


def deployment_options(settings: Settings) -> dict[str, Any]:
    """How Serve runs the API; what is measured beside it is run alike."""
    # A single one has a spare (`ingress`): Serve takes eight seconds to notice a death and start another.
    fewest = max(settings.api_replicas_min, _count_nodes() if settings.ray_address else 1, _SPARED)
    return {
        "max_ongoing_requests": _REQUESTS,
        "autoscaling_config": {
            "min_replicas": fewest,
            "max_replicas": max(fewest, settings.api_replicas_max),
            "target_ongoing_requests": _BUSY,
            "upscale_delay_s": 3,
            "downscale_delay_s": 120,
        },
        "ray_actor_options": {"num_cpus": _CPUS},
        # Serve's own log of each request would cost a tenth of a short one; the API has its own.
        "logging_config": _LOGS,
        "graceful_shutdown_timeout_s": _END_S,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 4,
        "health_check_timeout_s": 10,
    }


def _count_nodes() -> int:
    """The living nodes. Serve runs an ingress where there is a replica, and spreads replicas over nodes."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    return sum(bool(node["Alive"]) for node in nodes)


def run_api(settings: Settings, dsn: str) -> None:
    """Start the ingress on every node and the API behind it; returns when its replicas run. Blocks.

    Raises:
        RuntimeError: a replica does not start.
        TimeoutError: an ingress does not start.
    """
    serve.start(
        proxy_location="EveryNode",
        http_options={
            "host": _replica_host(settings),
            "port": settings.http_port,
            "request_timeout_s": settings.http_timeout_s,
        },
        logging_config=_LOGS,
    )
    api = serve.RunTarget(
        bind("Api", deployment_options(settings), ApiReplica(settings, dsn)),
        name=APPLICATION,
        route_prefix="/",
    )
    # Serve would wait a minute until every ingress has a server for each application, images too, and fail.
    with suppress(TimeoutError):
        serve.run_many([api], wait_for_applications_running=False)
    while (state := find_state(APPLICATION)).status != ApplicationStatus.RUNNING:
        if state.status == ApplicationStatus.DEPLOY_FAILED:
            raise RuntimeError(f"the API does not start: {state.message}")
        time.sleep(_LOOK_S)


def run_images(settings: Settings, dsn: str) -> None:
    """Start the applications of images, and exchange those that run; returns when they have been. Blocks.

    Raises:
        RayError, RayServeException, TimeoutError: they cannot be started now.
    """
    targets = [build_images(settings, dsn), faces_target(settings)]
    serve.run_many(targets, wait_for_applications_running=False)
    for _ in until_deadline(_START_S, _LOOK_S):
        if find_state(IMAGES).status != ApplicationStatus.DEPLOYING:
            return
    raise TimeoutError(f"no replica has started within {_START_S:g} s")


def find_images_fault() -> str:
    """Why no images are made; empty where they are, or would be made on request. Blocks.

    Raises:
        RayError, RayServeException: Serve cannot be asked.
    """
    for name in (IMAGES, FACES):
        state = find_state(name)
        if state.status == ApplicationStatus.NOT_STARTED:
            return f"{name} has not been started"
        if state.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            return f"{name} does not start: {' '.join(state.message.split())[:_FAULT_CHARACTERS]}"
    return ""


def _replica_host(settings: Settings) -> str:
    """The address that replicas listen on, and Serve's own proxy where there is no HAProxy."""
    # Behind HAProxy nobody else has business with them; for HAProxy of other nodes see `replica_listeners`.
    return RAY_HOST if is_behind_haproxy() else settings.bind_host


def stop_application(*, leave_ingress: bool) -> None:
    """Let running requests finish and take the applications down. Blocks.

    Args:
        leave_ingress: whether Serve itself goes on: for other applications, or until Ray ends, which is
            quicker than its own orderly end.
    """
    serve.delete(IMAGES, _blocking=False)
    serve.delete(FACES, _blocking=False)
    serve.delete(APPLICATION)
    if leave_ingress:
        return
    for _ in until_deadline(_GONE_S, _LOOK_S):
        if all(find_state(name).status == ApplicationStatus.NOT_STARTED for name in (IMAGES, FACES)):
            break
    if not serve.status().applications:
        serve.shutdown()  # type: ignore[no-untyped-call]  # Ray leaves it without types
