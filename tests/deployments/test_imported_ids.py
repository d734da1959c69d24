"""Polls keep their answers and titles when their program is exported and imported, through the ingress."""

from typing import Any

import httpx
import pytest

from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

POLL = {"title": "Who wins?", "options": ["Home", "Away"], "measureName": "whoWins"}


def test_a_poll_keeps_its_answers_and_its_title(instance: Instance) -> None:
    api = f"{instance.url}/api/v1"
    with httpx.Client(base_url=api, headers=instance.token(), timeout=30) as client:
        for program in ("kept-poll", "copied-poll"):
            body = {"id": program, "name": program, "projectId": "kept-polls"}
            client.post("/programs", json=body).raise_for_status()
        event = client.post("/programs/kept-poll/events", json={"event": "Poll#ask", "metadata": POLL}).json()
        answers = [
            {"measureName": "whoWins", "contextId": event["id"], "visitorId": f"v{n}", "measureValue": n % 2}
            for n in range(5)
        ]
        place = "/responses/demo/kept-polls/kept-poll"
        counted = client.post(place, json={"responses": answers})
        assert (counted.status_code, counted.json()["accepted"]) == (202, 5), counted.text
        before = report(client)
        assert before[0]["title"] == "Who wins?"

        export = client.get("/programs/kept-poll/events/export").json()
        imported = client.post("/programs/kept-poll/events/import", json=export)
        assert imported.status_code == 200, imported.text
        assert report(client) == before
        # It still counts, in the same poll.
        more = [answers[0] | {"visitorId": "late"}]
        assert client.post(place, json={"responses": more}).json()["accepted"] == 1
        assert report(client)[0]["total"] == 6

        copy = export | {"programId": "copied-poll"}
        assert client.post("/programs/copied-poll/events/import", json=copy).json()["imported"] == 1
        (copied,) = client.get("/programs/copied-poll/events").json()
        assert copied["id"] != event["id"]
        twice = export | {"events": export["events"] * 2}
        refused = client.post("/programs/kept-poll/events/import", json=twice)
        assert refused.status_code == 400
        assert [fault["field"] for fault in refused.json()["errors"]] == ["events[1].id"]


def report(client: httpx.Client) -> list[dict[str, Any]]:
    answer = client.get("/responses/demo/kept-polls/kept-poll/report")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["responses"])
