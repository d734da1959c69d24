"""Runs a poll until Enter is pressed, and announces what won.

Run: BROKER_USERNAME=… BROKER_PASSWORD=… python quiz.py PROGRAM QUESTION OPTION OPTION…
"""

import asyncio
import os
import sys
from collections.abc import Sequence

from broker.client import AsyncClient

URL = os.environ.get("BROKER_URL", "http://localhost:8000")
MEASURE = "quiz"


async def ask(program: str, question: str, options: Sequence[str]) -> None:
    """Ask, wait, close, and publish the winner."""
    user, password = os.environ["BROKER_USERNAME"], os.environ["BROKER_PASSWORD"]
    async with AsyncClient(URL, username=user, password=password) as client:
        asked = {"title": question, "measureName": MEASURE, "options": list(options)}
        poll = await client.publish(program, "Poll#show", asked)
        print(f"asked: {question} Press Enter to close the poll.", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        results = await client.responses.get_results(MEASURE, program_id=program, context_id=poll.id)
        votes = [results.results.get(place, 0) for place in range(len(options))]
        await client.publish(program, "Poll#hide")
        winner = options[votes.index(max(votes))]
        await client.publish(program, "Winner#show", {"team": winner, "score": sorted(votes)[-2:][::-1]})
        print(f"{winner} wins, {max(votes)} of {sum(votes)} votes")


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
