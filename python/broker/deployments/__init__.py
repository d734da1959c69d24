"""The composition root: assembles and supervises Ray, Ray Serve, owners, gateways and PostgreSQL."""
