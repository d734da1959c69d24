"""Slots: parts of the product of which the instance runs exactly one each, as named Ray actors.

`pool` starts them, watches over them and exchanges them; `actor` is what such an actor does whatever its part
is; `link` is the way to one, over the connections of `broker.rpc`; `pulse` ends one that hangs.
"""
