"""A deleted event as strangers ask for it, with curl and a WebSocket library, also after processes died."""

import json
import re
import secrets
import subprocess
import time

import httpx
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.adversity.faults import TITLES, kill
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_AGAIN_S = 60.0
_STREAM_S = 2.0
SECRET = "the-winner"
LEFT = [(1, "eventDeleted"), (2, "event"), (3, "eventDeleted"), (4, "eventDeleted")]


def test_strangers_read_nothing_of_a_deleted_event(instance: Instance) -> None:
    program = f"withdrawn-{secrets.token_hex(4)}"
    path = f"{instance.url}/api/v1/programs/{program}/events"
    with httpx.Client(headers=instance.token(), timeout=20) as admin:
        body = {"id": program, "name": program}
        admin.post(f"{instance.url}/api/v1/programs", json=body).raise_for_status()

        def publish(text: str, timecode: int) -> str:
            event = {"event": "Result#show", "timecode": timecode, "metadata": {"text": text}}
            return str(admin.post(path, json=event).raise_for_status().json()["id"])

        secret = publish(SECRET, 2)
        publish("kept", 1)
        admin.put(f"{path}/{secret}", json={"metadata": {"text": f"{SECRET} again"}}).raise_for_status()
        first_page = curl(f"{path}?limit=1", "--include")
        (rest,) = re.findall(r"<([^>]+)>; rel=\"?next", first_page)
        rest = f"{instance.url}/api/v1/{rest.partition('/api/v1/')[2]}"
        assert SECRET in curl(rest)
        before = [stream(instance, program), *replies(instance, program)]
        assert [told for told in before if SECRET not in told] == []
        admin.delete(f"{path}/{secret}").raise_for_status()
    for killed in ("", "gateway", "owner", "PostgreSQL"):
        assert not killed or kill(instance, TITLES[killed])
        told = until_served(instance, program)
        assert told == [LEFT] * 3, f"after a kill of {killed or 'nothing'}"
        everything = [stream(instance, program), *replies(instance, program), curl(rest), curl(path)]
        assert [one for one in everything if SECRET in one] == []


def curl(url: str, *options: str) -> str:
    """What is answered within two seconds."""
    command = ["curl", "--silent", "--no-buffer", "--max-time", str(_STREAM_S), *options, url]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def stream(instance: Instance, program: str) -> str:
    """The event stream of a program with its history."""
    gateway = f"http://localhost:{instance.ws_port}"
    return curl(f"{gateway}/api/v1/programs/{program}/events/stream?history=10")


def replies(instance: Instance, program: str) -> list[str]:
    """The replies to `subscribe` with a history and with a cursor from the beginning."""
    with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", proxy=None) as socket:

        def subscribe(**params: object) -> str:
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "subscribe",
                "params": {"programId": program} | params,
            }
            socket.send(json.dumps(call))
            return str(socket.recv(20))

        by_history = subscribe(history=10)
        epoch = json.loads(by_history)["result"]["epoch"]
        socket.send(json.dumps({"jsonrpc": "2.0", "method": "unsubscribe", "params": {"programId": program}}))
        return [by_history, subscribe(since={"epoch": epoch, "seq": 0})]


def until_served(instance: Instance, program: str) -> list[list[tuple[int, str]]]:
    """Seq and method of each message in the stream and in the replies, once all of them come."""
    deadline_s = time.monotonic() + _AGAIN_S
    while True:
        try:
            events = [
                (json.loads(data)["seq"], method)
                for method, data in re.findall(
                    r"event: (event\w*)\n.*?data: (.*)\n", stream(instance, program)
                )
            ]
            found = [events]
            for reply in replies(instance, program):
                told = json.loads(reply)["result"]["events"]
                found.append([(each["seq"], each.get("method", "event")) for each in told])
        except (OSError, WebSocketException, KeyError):
            found = []
        if (found and all(found)) or time.monotonic() > deadline_s:
            return found
        time.sleep(0.2)
