"""Audience answers: the counters, and how the doors reach them."""
