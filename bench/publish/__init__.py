"""Durable publishing through the whole product: how much, how late, and where the time goes."""
