"""The HTTP door beside a bare deployment of the same Ray Serve."""
