"""The counters of votes, and the client of them."""
