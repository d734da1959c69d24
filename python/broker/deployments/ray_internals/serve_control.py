"""Tells how Ray Serve is configured in this process.

Names used: `RAY_SERVE_ENABLE_HA_PROXY` of `ray.serve._private.constants`.
Probe: the import, when an application is deployed; where it is missing the start ends with its name.
Fall-back: none. What listens where depends on it.
Gain: what Serve really does, in place of a guess from the environment.
"""

from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY


def is_behind_haproxy() -> bool:
    """Whether HAProxy hands requests to replicas; otherwise Serve's own proxy does."""
    return bool(RAY_SERVE_ENABLE_HA_PROXY)
