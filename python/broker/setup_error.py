"""The error that stops a start. Apart from `broker.storage.errors`, which imports the database driver."""


class SetupError(Exception):
    """Something about this installation stops a start; the text is one line for the operator, no secrets."""
