"""Traces: spans of sampled publishes, sent to a collector by OpenTelemetry's protocol; off without one.

`tracer` is what other rooms use, `opening` opens one, `contexts` reads and writes what names a span in text,
`requests` decides which requests are traced. `otlp` alone imports OpenTelemetry, and only when traces are on.
"""
