"""The replicas that a configuration of HAProxy names."""

import re


def list_replicas(configuration: str, application: str = "broker") -> dict[str, tuple[str, int]]:
    """The address and the port of each replica of an application of Ray Serve, by its name.

    HAProxy calls those of its own node at socket files, whose names end with the port at which the same
    replica listens on 127.0.0.1.
    """
    server = rf"^ *server (SERVE_REPLICA_{application}-[A-Z]\S*) (?:unix@\S*?|(\S+):)(\d+) "
    return {
        name: (host or "127.0.0.1", int(port))
        for name, host, port in re.findall(server, configuration, re.MULTILINE)
    }
