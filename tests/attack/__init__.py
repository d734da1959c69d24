"""Attacks on the running product, by who may try them, each with a bound on what it may cost every process.

A *stranger* reaches the ports, a *tenant* has an account of its own, a *role* has a user in the account, and
a *neighbour* is another user of the machine. Each attack asserts what is promised about the answers that it
gets. `attack.carry_out` measures every process of the instance meanwhile, sees that none dies and none is
added, and follows a program as a viewer that must be served, in order and with nothing lost.

`make attack` runs the long form, which doubles the input and prints a table; the tests run the short one.
"""
