"""What the slots of counters are named for."""

COUNTER = "counter"
"""The kind of the counters' slots."""
