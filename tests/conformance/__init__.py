"""The WebSocket protocol cases, run against the native server; `python -m tests.conformance`."""
