"""PostgreSQL, the only truth: connection pool, migrations, one repository a resource, the embedded server."""
