"""The counters of votes, and how the doors reach them."""
