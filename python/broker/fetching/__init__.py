"""The one HTTP client for upstream servers; it restricts addresses and bounds bytes and time."""
