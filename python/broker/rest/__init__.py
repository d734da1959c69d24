"""The REST door: translates HTTP to operations and renders what comes back."""
