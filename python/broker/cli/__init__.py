"""The command line: `broker …`."""
