"""Pools of slots: named Ray actors of which the instance runs exactly one per slot.

`pool` starts them, watches over them and exchanges them; `actor` is what such an actor does whatever its part
is; `link` is the way to one, over the connections of `broker.rpc`; `liveness` ends one that hangs.
"""
