"""Audience answers: how they are counted, and what the doors ask of those who count."""
