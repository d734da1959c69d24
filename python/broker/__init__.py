"""The broker: ordered, durable events from producers to any number of viewers.

The package is layered; imports run downwards only and a test holds them to it::

    cli, deployments
    rest, gateway, dashboard
    operations
    storage, auth, owners
    domain
    errors, clock, ids

`broker.client` stands beside the layers: it is the SDK and imports none of the server.
"""

__version__ = "0.1.0"
DISTRIBUTION = "onair-broker"
"""The name of the distribution; on package registries `broker` belongs to another project."""
