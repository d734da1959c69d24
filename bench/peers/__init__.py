"""The peers' programs: pinned here, installed under `.build/peers` without touching the system."""
