"""How an operation is run, whichever door it came through, and the services that all of them share.

The operations themselves are in `broker.resources` and `broker.voting.resources`.
"""
