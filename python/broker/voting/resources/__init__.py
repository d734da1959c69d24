"""The operations of the audience: votes in, results out."""
