"""The address of the node that a process runs on, for settings with the value `node`.

The settings of a cluster are the same on all nodes; an address of its own is what each node has different.
Ray tells its workers the process id of their raylet, and what a worker starts inherits that: so the program
that becomes HAProxy knows its node too, without importing Ray. Two nodes on one machine are told apart.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from broker.setting_rules import NODE, NODE_LABEL
from broker.settings import SettingError, Settings

_RAYLET = "RAY_RAYLET_PID"
_OPTION = "--node_ip_address="


def node_address() -> str:
    """The address under which this node joined its cluster.

    Raises:
        SettingError: this process is on no node: no worker of Ray's, and started by none.
    """
    try:
        words = Path(f"/proc/{int(os.environ[_RAYLET])}/cmdline").read_text().split("\0")
        return next(word.removeprefix(_OPTION) for word in words if word.startswith(_OPTION))
    except (KeyError, ValueError, OSError, StopIteration):
        raise SettingError(f"BROKER_BIND_HOST: {NODE} is only allowed where Ray starts the process") from None


def on_this_node(settings: Settings) -> Settings:
    """The settings with this node's address where they say `node`, and as a label in the URL.

    Raises:
        SettingError: they do, and this process is on no node.
    """
    if NODE not in (settings.bind_host, settings.ops_host) and NODE_LABEL not in settings.public_ws_url:
        return settings
    address = node_address()
    hosts = (settings.bind_host, settings.ops_host)
    bind_host, ops_host = (address if host == NODE else host for host in hosts)
    public_ws_url = settings.public_ws_url.replace(NODE_LABEL, re.sub(r"[.:]", "-", address))
    return replace(settings, bind_host=bind_host, ops_host=ops_host, public_ws_url=public_ws_url)
