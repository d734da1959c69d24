"""Metrics of all processes of a node, on one page in Prometheus' text format.

Every process counts in plain numbers (`counts`) and listens on a Unix socket of its own in a directory that
only the product's user may enter (`exporter`). Nothing is sent while nobody asks: an idle product stays idle.
Whoever serves the page asks all sockets of the directory (`page`). `catalogue` lists every metric there is.
"""
