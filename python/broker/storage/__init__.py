"""PostgreSQL, the only truth: connection pool, migrations, one repository per resource, embedded server."""

OLDEST_VERSION = 14
"""Of PostgreSQL, that we work on."""
