"""Passwords, access tokens, signing keys and revocation."""
