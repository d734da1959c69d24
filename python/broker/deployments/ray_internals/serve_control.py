"""Configures Ray Serve in this process, and restarts its controller.

Names used: `RAY_SERVE_ENABLE_HA_PROXY`, `SERVE_CONTROLLER_NAME`, `SERVE_NAMESPACE` and `SERVE_PROXY_NAME` of
`ray.serve._private.constants`.
Probe: the import, when an application is deployed; where one is missing the start ends with its name.
Fall-back: none. What listens where depends on the first; without the others there is nothing to restart.
Gain: what Serve really does, in place of a guess from the environment; after the clock was set back a dead
replica is noticed at once and not after as long as the clock went back.
"""

from contextlib import suppress

import ray
from ray.exceptions import RayError
from ray.serve._private.constants import (
    RAY_SERVE_ENABLE_HA_PROXY,
    SERVE_CONTROLLER_NAME,
    SERVE_NAMESPACE,
    SERVE_PROXY_NAME,
)


def is_behind_haproxy() -> bool:
    """Whether HAProxy hands requests to replicas; otherwise Serve's own proxy does."""
    return bool(RAY_SERVE_ENABLE_HA_PROXY)


def restart_control() -> None:
    """Restart Serve's controller and the managers of its ingress, which know their state again. Blocks.

    Requests go on, except those that HAProxy has in progress.
    """
    for actor in ray.util.list_named_actors(all_namespaces=True):
        name, namespace = actor["name"], actor["namespace"]
        if namespace == SERVE_NAMESPACE and name.startswith((SERVE_CONTROLLER_NAME, SERVE_PROXY_NAME)):
            with suppress(ValueError, RayError):  # it has ended meanwhile and is restarted anyway
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=False)
