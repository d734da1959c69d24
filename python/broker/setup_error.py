"""What stops a start. Apart from `broker.storage.errors`, which takes the database's driver along."""


class SetupError(Exception):
    """Something about this installation stops a start; the text is one line for the operator, no secrets."""
