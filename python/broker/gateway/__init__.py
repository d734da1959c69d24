"""The WebSocket door: the Python half beside the native server."""
