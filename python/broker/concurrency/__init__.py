"""What waits, repeats, remembers and groups: each mechanism once, knowing nothing of its use."""
