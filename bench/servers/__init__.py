"""Contenders written in Python; each is a program that the bench drives over its input."""
