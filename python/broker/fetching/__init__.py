"""The one way to ask servers of others for something: addresses, bytes and seconds are bounded."""
