"""The composition root: Ray, Ray Serve, owners, gateways and PostgreSQL put together and supervised."""
