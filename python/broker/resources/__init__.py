"""What can be done, a module a resource: params, results, rules and handlers. `catalogue` gathers them."""
