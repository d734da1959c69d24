"""PostgreSQL, the only truth: connection pool, migrations, one repository a resource, the embedded server."""

OLDEST_VERSION = 14
"""Of PostgreSQL, that we work on."""
