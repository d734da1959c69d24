"""The processes of named actors, as Ray knows them before they have answered anything.

Names used: `ray._private.state.actors` and of what it tells `Name`, `Pid` and `Address.NodeID`.
Probe: none; the call fails where they are gone.
Fall-back: no process is known, so an actor that hangs is left to who started it.
Gain: a gateway that hangs as soon as it has started is killed and started again, with no conductor there;
`broker drain` knows what is left on a node.
"""

from contextlib import suppress

from ray._private import state


def list_processes(prefix: str, node: str) -> dict[str, int]:
    """The living actors of a node whose names begin so, and their process ids. Blocks.

    Raises:
        RayError: Ray cannot be asked now.
    """
    with suppress(AttributeError, KeyError):
        living = state.actors(actor_state_name="ALIVE").values()
        return {
            actor["Name"]: actor["Pid"]
            for actor in living
            if actor["Name"].startswith(prefix) and actor["Address"]["NodeID"] == node
        }
    return {}
