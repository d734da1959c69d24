"""Waiting, repeating, caching and batching: each mechanism once, independent of its use."""
