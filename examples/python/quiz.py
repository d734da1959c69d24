"""Runs a poll until Enter is pressed, closes it, and announces what won.

Run: BROKER_USERNAME=… BROKER_PASSWORD=… python quiz.py PROGRAM QUESTION OPTION OPTION…
"""

import asyncio
import os
import sys
from collections.abc import Sequence

from broker.client import AsyncClient

URL = os.environ.get("BROKER_URL", "http://localhost:8000")
MEASURE = "quiz"
CLOSED_S = 1.5  # a change of a poll counts everywhere within a second


async def ask(program: str, question: str, options: Sequence[str]) -> None:
    """Ask, wait, close, and publish the winner."""
    user, password = os.environ["BROKER_USERNAME"], os.environ["BROKER_PASSWORD"]
    async with AsyncClient(URL, username=user, password=password) as client:
        asked = {"title": question, "measureName": MEASURE, "options": list(options)}
        poll = await client.publish(program, "Poll#show", asked)
        print(f"asked: {question} Press Enter to close the poll.", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        now = await client.status.get_server_time()
        await client.events.update(program, poll.id, metadata=asked | {"closes": now.server_time_ms})
        await asyncio.sleep(CLOSED_S)
        votes = await count(client, program, poll.id) or [0] * len(options)
        await client.publish(program, "Poll#hide")
        best = max(votes)
        winners = [option for option, each in zip(options, votes, strict=True) if best and each == best]
        if len(winners) == 1:
            score = sorted(votes)[-2:][::-1]
            await client.publish(program, "Winner#show", {"team": winners[0], "score": score})
            print(f"{winners[0]} wins, {best} of {sum(votes)} votes")
        elif winners:
            print(f"a draw: {' and '.join(winners)} have {best} of {sum(votes)} votes each")
        else:
            print("nobody has voted")


async def count(client: AsyncClient, program: str, poll: str) -> list[int]:
    """The votes by option; empty before the first. Live results may be a second old, the report never is."""
    project = (await client.programs.get(program)).project_id
    for entry in await client.responses.get_report(program, project_id=project):
        if entry.context_id == poll and entry.is_declared:
            return [option.total for option in entry.options]
    return []


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
