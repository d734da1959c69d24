"""Polls as the doors need them: remembered, sealed once they are over, and told to who follows."""
