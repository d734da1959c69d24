"""How often something may be done: by an address, in an account, in one process or over all of them."""
