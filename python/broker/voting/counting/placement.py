"""The kind of slot that counters have."""

COUNTER = "counter"
"""The kind of the counters' slots."""
