"""All operations, one module per resource: params, results, rules and handlers. `catalogue` has them all."""
