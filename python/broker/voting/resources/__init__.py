"""The operations of the audience: votes and results."""
