"""The demonstration: the whole product on this machine, a scripted final, viewers, and a live display."""
