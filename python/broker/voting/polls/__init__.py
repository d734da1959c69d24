"""Polls as the doors need them: cached, sealed when they are over, and pushed to subscribers."""
