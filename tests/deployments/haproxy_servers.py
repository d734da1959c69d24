"""The replicas that a configuration of HAProxy names."""

import re

_SERVER = re.compile(r"^ *server (SERVE_REPLICA_\S+) (?:unix@\S*?|(\S+):)(\d+) ", re.MULTILINE)


def list_replicas(configuration: str, name: str = "") -> dict[str, tuple[str, int]]:
    """The address and the port of each replica, by its name.

    Args:
        name: begins the names of those that are wanted, after the word that all of them have.

    HAProxy calls those of its own node at socket files, whose names end with the port at which the same
    replica listens on 127.0.0.1.
    """
    return {
        server: (host or "127.0.0.1", int(port))
        for server, host, port in _SERVER.findall(configuration)
        if server.removeprefix("SERVE_REPLICA").startswith(name)
    }
