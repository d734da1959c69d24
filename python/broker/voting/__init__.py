"""Polls, votes and results, in layers: `resources` on top, then `polls`, `counting` and `rules`.

`rules` is pure. `counting` has the counters and the client of them. `polls` is what a process remembers of
polls, and says when a result is final. `resources` are the operations: to vote, and to read what was counted.
"""
