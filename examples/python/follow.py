"""Prints each event of a program once, also over restarts: the position is kept in a file.

Run: python follow.py PROGRAM
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from broker.client import AsyncClient, Cursor, HistoryLost

URL = os.environ.get("BROKER_URL", "http://localhost:8000")


async def follow(program: str) -> None:
    """Print what happens in `program` until Ctrl-C."""
    kept = Path(f"{program}.position.json")
    since = Cursor(**json.loads(kept.read_text())) if kept.exists() else None
    async with AsyncClient(URL) as client:
        while True:
            subscription = client.subscribe(program, since)
            try:
                async for event in subscription:
                    print(event.seq, event.event, json.dumps(event.metadata), flush=True)
                    if subscription.cursor is not None:
                        kept.write_text(json.dumps(asdict(subscription.cursor)))
            except HistoryLost:
                since = None  # what was missed is gone: go on with what comes now


if __name__ == "__main__":
    try:
        asyncio.run(follow(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
