"""Passwords, access tokens, signing keys, revocation and rate limits."""
