"""Calls between the processes of one instance, over framed, authenticated links of our own; knows no Ray.

`calls` says what may be called and how it becomes bytes, `wire` how two processes know each other and what a
frame is, `connection` is the caller's end and `listener` the other.
"""
