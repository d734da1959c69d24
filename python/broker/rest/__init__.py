"""The HTTP door: finds the operation of a request, hands it to `invoke`, renders what comes out.

The door is one ASGI application over the registry, without a framework's routes: a request is matched
against a tree of path segments, and methods, parameters, bodies and errors have one rule each, here.
"""
