"""Changes of one thing at the same time, at both API replicas and through the real ingress: all count."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from broker.demo.matomo import READER, SUPERUSER, Parameters, StandIn, open_stand_in
from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROUNDS = 5
Change = tuple[str, str, str, dict[str, Any]]
"""Method, path, access token, body."""


class Racers:
    """Sends changes at the same moment, each over a connection of its own."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._ids: list[str] = []
        self.admin = instance.token()["Authorization"].removeprefix("Bearer ")

    def send(self, *changes: Change) -> list[httpx.Response]:
        """The responses, in the order of the changes."""
        line = threading.Barrier(len(changes))

        def one(change: Change) -> httpx.Response:
            line.wait()
            return self.call(*change)

        with ThreadPoolExecutor(len(changes)) as pool:
            told = list(pool.map(one, changes))
        self._ids += [response.headers["x-request-id"] for response in told]
        return told

    def call(
        self, method: str, path: str, token: str, body: dict[str, Any] | None = None, etag: str = ""
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} | ({"If-Match": etag} if etag else {})
        url = f"{self._instance.url}/api/v1{path}"
        return httpx.request(method, url, json=body, headers=headers, verify=False, timeout=60)

    def log_in(self, username: str) -> str:
        form = {"grant_type": "password", "client_id": "Test", "username": username, "password": PASSWORD}
        reply = httpx.post(f"{self._instance.url}/api/v1/token", data=form, verify=False, timeout=60)
        return str(reply.raise_for_status().json()["access_token"])

    def add_user(self, username: str, role: str) -> tuple[str, str]:
        """Its id, and an access token."""
        body = {"username": username, "password": PASSWORD, "role": role}
        added = self.call("POST", "/users", self.admin, body).raise_for_status().json()
        return str(added["id"]), self.log_in(username)

    def replicas(self) -> set[int]:
        """The processes that answered what was sent."""
        wanted, found = set(self._ids), dict[str, int]()
        deadline_s = time.monotonic() + 30
        while not wanted <= found.keys():
            assert time.monotonic() < deadline_s
            text = (self._instance.data_dir / "log" / "broker.log").read_text()
            for line in text.rpartition("\n")[0].splitlines():  # the last one may be half written
                entry = json.loads(line)
                if entry.get("requestId") in wanted and entry["event"] == "request":
                    found[entry["requestId"]] = entry["pid"]
        return set(found.values())


@pytest.fixture
def racers(instance: Instance) -> Iterator[Racers]:
    racers = Racers(instance)
    yield racers
    assert len(racers.replicas()) == 2, "they met in the database only"


@pytest.fixture
def matomo(instance: Instance) -> Iterator[StandIn]:
    settings = instance.environment
    tokens = {
        settings["BROKER_MATOMO_TOKEN"]: SUPERUSER,
        settings["BROKER_MATOMO_READER_TOKEN"]: READER,
    }
    opened = open_stand_in(StandIn(tokens=tokens), urlsplit(settings["BROKER_MATOMO_URL"]).port or 0)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as stand_in:
        yield stand_in


def test_profile_changes_keep_what_others_change(racers: Racers) -> None:
    id_, token = racers.add_user("crossing", "producer")
    for number in range(ROUNDS):
        name, email, project = f"Name {number}", f"a{number}@example.com", f"project-{number}"
        changes: list[Change] = [
            ("PUT", "/users/me", token, {"name": name}),
            ("PUT", "/users/me", token, {"email": email}),
            ("PUT", f"/users/{id_}", racers.admin, {"projectIds": [project]}),
            ("PUT", f"/users/{id_}", racers.admin, {"username": f"crossing-{number}"}),
        ]
        assert [told.status_code for told in racers.send(*changes)] == [200] * 4
        user = racers.call("GET", "/users/me", token).json()
        told = (user["name"], user["email"], user["projectIds"], user["username"])
        assert told == (name, email, [project], f"crossing-{number}")


def test_of_two_admins_who_demote_each_other_one_remains(racers: Racers) -> None:
    """The token of who was demoted first changes nobody any more."""
    for number in range(ROUNDS):
        admins = [racers.add_user(f"rival-{number}-{side}", "admin") for side in range(2)]
        (first, of_first), (second, of_second) = admins
        told = racers.send(
            ("PUT", f"/users/{second}", of_first, {"role": "user"}),
            ("PUT", f"/users/{first}", of_second, {"role": "user"}),
        )
        assert sorted(response.status_code for response in told) == [200, 401]
        roles = [racers.call("GET", f"/users/{id_}", racers.admin).json()["role"] for id_, _ in admins]
        assert sorted(roles) == ["admin", "user"]


def test_set_ups_of_a_site_and_changes_of_its_project_lose_nothing(racers: Racers, matomo: StandIn) -> None:
    async def take_time(method: str, _parameters: Parameters) -> None:
        if method.endswith(("addSite", "configureNewCustomDimension", "addCustomReport")):
            await asyncio.sleep(0.02)  # so that others come in between

    matomo.intercept = take_time
    for number in range(3):
        project, path = f"sited-{number}", f"/projects/sited-{number}"
        racers.call("POST", "/projects", racers.admin, {"id": project, "name": "A", "metadata": {"a": 1.5}})
        site = f"{path}/analytics/site"
        is_over = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            noting = [pool.submit(note, racers, path, f"n{side}", is_over) for side in range(4)]
            told = set_up_at_once(racers, site)
            is_over.set()
            noted = {name for each in noting for name in each.result()}
        assert set(told) <= {200, 201, 500}, told
        assert told.count(201) == 1
        found = racers.call("GET", site, racers.admin).json()
        assert (found["status"], len(matomo.sites)) == ("ok", number + 1)
        metadata = racers.call("GET", path, racers.admin).json()["metadata"]
        assert metadata.pop("analytics") == {
            key: found[key] for key in ("idSite", "dimensionIds", "reportIds")
        }
        assert metadata == {"a": 1.5} | dict.fromkeys(noted, True)


def set_up_at_once(racers: Racers, site: str) -> list[int]:
    """As clients do: whoever meets another set-up comes again; a PUT that finds no site may be first."""

    def set_up(method: str) -> int:
        while (status := racers.send((method, site, racers.admin, {}))[0].status_code) == 409:
            time.sleep(0.02)
        return status

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(set_up, ("POST", "PUT") * 3))


def note(racers: Racers, path: str, name: str, is_over: threading.Event) -> list[str]:
    """Add names to the metadata of a project, as who knows its newest revision; those that were added."""
    added: list[str] = []
    while not is_over.is_set():
        known = racers.call("GET", path, racers.admin)
        one = f"{name}-{len(added)}"
        body = {"name": name, "metadata": known.json()["metadata"] | {one: True}}
        changed = racers.call("PUT", path, racers.admin, body, known.headers["etag"])
        if changed.status_code == 200:
            added.append(one)
        else:
            assert changed.status_code == 412, changed.text
    return added


def test_purges_at_the_same_time_reach_every_image(
    instance: Instance, racers: Racers, image_server: ImageServer
) -> None:
    paths = [f"/a.png?crossing-{number}" for number in range(16)]
    with closing(ImageDoor(instance, image_server)) as door:
        for turn in range(3):
            for path in paths:
                until(lambda path=path: door.get("w=50", path).headers.get("x-cache") == "HIT")
            seen = [image_server.seen.count(path) for path in paths]
            purges: list[Change] = [
                ("POST", "/images/purge", racers.admin, {"url": image_server.url(path)}) for path in paths
            ]
            # In one turn also everything at once, which takes the place of all that came before it alone.
            purges += [("POST", "/images/purge", racers.admin, {"all": True})] * (turn == 1)
            told = racers.send(*purges)
            assert {response.status_code for response in told} == {204}
            warm(racers, image_server, paths)
            kept = [
                path for path, was in zip(paths, seen, strict=True) if image_server.seen.count(path) <= was
            ]
            assert kept == []


def warm(racers: Racers, image_server: ImageServer, paths: Sequence[str]) -> None:
    """Have images made, which looks for the newest purge first."""
    body = {"urls": [image_server.url(path) for path in paths], "options": ["w=50"]}
    made = racers.call("POST", "/images/warm", racers.admin, body).raise_for_status().json()["images"]
    assert [each["status"] for each in made] == [200] * len(paths)


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
