"""Prints each event of a program once, also over restarts: the position is kept in a file.

Run: python follow.py PROGRAM
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from broker.client import AsyncClient, Cursor, Event, HistoryLost

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
                    show(event)
                    if subscription.cursor is not None:
                        kept.write_text(json.dumps(asdict(subscription.cursor)))
            except HistoryLost as lost:
                # The history is another one, or too long: what was missed is read, and followed from there.
                for event in await client.events.missed(lost):
                    show(event)
                since = lost.cursor
                kept.write_text(json.dumps(asdict(since)))


def show(event: Event) -> None:
    """Print one event."""
    print(event.seq, event.event, json.dumps(event.metadata), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(follow(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
