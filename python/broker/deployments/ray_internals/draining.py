"""Which nodes of a cluster are about to leave it.

`ray drain-node` says so for a node, as a `preStop` hook on Kubernetes does, and Ray's autoscaler before it
takes a node away. Ray then starts nothing new there and ends nothing; Ray Serve moves its replicas.

Names used: `ray._private.state.state.get_draining_nodes`.
Probe: none; the call fails where it is gone.
Fall-back: no node drains. One that leaves is then one that dies: viewers find its gateway gone and reconnect.
Gain: viewers of a node that leaves are told to reconnect, spread over seconds, while it still serves.
"""

from contextlib import suppress

from ray._private import state


def list_draining() -> set[str]:
    """The ids of the nodes that drain. Blocks for a round trip to Ray."""
    with suppress(AttributeError):
        return set(state.state.get_draining_nodes())
    return set()
