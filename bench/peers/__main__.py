"""Installs the peers: `python -m bench.peers`. The exit status is 1 when one is missing."""

import sys

from bench.peers.install import PEERS, InstallError, ensure_peer


def main() -> int:
    """Install all, and say which cannot be had."""
    is_complete = True
    for name in PEERS:
        try:
            ensure_peer(name)
        except InstallError as error:
            is_complete = False
            print(f"{name} is missing: {error}")
        else:
            print(f"{name} is there")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
