"""The engine that runs operations, whichever door they came through, and their shared services.

The operations themselves are in `broker.resources` and `broker.voting.resources`.
"""
