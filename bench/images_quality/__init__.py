"""Crops and animations, judged by other people's detectors and decoders."""
