"""`broker drain`."""

from typing import Annotated

import typer

from broker.cli.output import write_notice
from broker.settings import Settings
from broker.setup_error import SetupError


def drain(
    node: Annotated[
        str, typer.Argument(help="Its address, or the beginning of its id in Ray. [default: this node]")
    ] = "",
    ray_address: Annotated[
        str | None, typer.Option(help="As for `broker up`.  [env var: BROKER_RAY_ADDRESS]")
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until the node is empty; 0 does not wait.", min=0)
    ] = 60,
) -> None:
    """Empty a node of a Ray cluster before it is taken away.

    Viewers of its gateway are told to reconnect, which they do to other nodes. Its owners and counters start
    elsewhere; publishes and votes wait for a moment, and none is lost. A node that was drained takes nothing
    again until its Ray is started anew.
    """
    address = Settings.load(ray_address=ray_address).ray_address
    if not address:
        raise SetupError(
            "BROKER_RAY_ADDRESS or --ray-address is required: one machine alone has no other node"
        )
    from broker.deployments.drain import drain_node  # brings Ray, for which `--help` need not wait

    drain_node(address, node, wait, write_notice)
