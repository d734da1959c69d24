"""Load on a running product with Locust: producers over HTTP, viewers over WebSocket, a show with both.

    BROKER_PASSWORD=… locust -f bench/locustfile.py --headless --users 6 --run-time 1m [--tags show]

It finds the product and signs in as the command line does: `BROKER_URL` (http://localhost:8000) or `--host`,
`BROKER_USERNAME` (admin), `BROKER_PASSWORD`. Six users are a producer, four viewers and a studio.

* `Producer` (tag `publish`) publishes single events and now and then a batch, and reads the program's events;
* `Viewer` (tag `view`) subscribes and takes what comes, and votes in each poll that it is shown; it leaves
  after a while and recovers with `since`;
* `Show` (tag `show`) is a studio: it watches its own program and times each event until its screen shows it.

`--shape FullShow` or `--shape ShortShow` plays a show: users arrive, all are there at kick-off, a goal is a
burst of events, all vote, and leave. `--users` is the most there are, and `--run-time` stretches the stages.
Without it the load is as even as Locust's own options make it. `--processes N` divides the users among
processes.

Latencies of pushes are wall-clock times between processes: run Locust on one machine or keep clocks together.
A lost or doubled event is a failure of the entry `push`. What a viewer missed while it was away has an
entry of its own, `recovered`: its latency is mostly the time away.
"""

import json
import logging
import os
import random
import time
import uuid
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
from locust import HttpUser, LoadTestShape, User, between, constant_throughput, events, tag, task
from locust.env import Environment
from locust.exception import StopUser
from locust.rpc.protocol import Message
from locust.runners import MasterRunner
from show_stages import FULL, GOAL, SHORT, VOTE, Stage, find_moment  # Locust looks in this file's folder
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

BATCH_EVENTS = 10
STAY_PUSHES = 200
"""Pushes after which a viewer reconnects."""
SILENCE_S = 10.0
USERS = 60
"""Of a show whose `--users` nobody has said."""
EVENTS_PER_S = 5
GOAL_EVENTS_PER_S = 20
"""Of a producer; during a goal all score boards, clocks and line-ups change at once."""
ASK, MEASURE, OPTIONS = "Poll#show", "whoWins", ("Home", "Away")
SUBSCRIBE_ID, VOTE_ID = 1, 2
SHAPES = ("FullShow", "ShortShow")
HOST = os.environ.get("BROKER_URL") or "http://localhost:8000"

_log = logging.getLogger(__name__)


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """The options that Locust does not have itself."""
    parser.add_argument("--program", default="locust", help="program to publish to and follow")
    parser.add_argument("--username", default="admin", env_var="BROKER_USERNAME")
    parser.add_argument(
        "--password", default="", env_var="BROKER_PASSWORD", is_secret=True, help="of that user"
    )
    parser.add_argument(
        "--shape",
        choices=("", *SHAPES),
        default="",
        env_var="LOCUST_SHAPE",
        include_in_web_ui=False,  # there `--class-picker` has a list of its own
        help="the show to play; none is an even load",
    )
    parser.add_argument("--ws-url", default="", help="WebSocket endpoint; asked from /connect by default")


class Session:
    """What users of one environment need: a token and the WebSocket's address."""

    def __init__(self, environment: Environment) -> None:
        options: Any = environment.parsed_options
        self.program = str(options.program)
        self._base_url = f"{(environment.host or HOST).rstrip('/')}/api/v1"
        self._ws_url = str(options.ws_url)
        self._form = {
            "grant_type": "password",
            "client_id": "Test",
            "username": options.username,
            "password": options.password,
        }

    def log_in(self) -> dict[str, str]:
        """Headers of a caller who may publish; makes the program if it is not there."""
        if not self._form["password"]:
            raise StopUser(f"no password for {self._form['username']}: set BROKER_PASSWORD, or --password")
        try:
            answer = httpx.post(f"{self._base_url}/token", json=self._form, timeout=30)
        except httpx.TransportError as error:
            raise StopUser(f"no response from {self._base_url}: {error}; is `broker up` running?") from error
        if answer.is_error:
            raise StopUser(f"cannot log in at {self._base_url}: {answer.text}")
        headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        program = {"id": self.program, "name": "Locust"}
        # 409 when another user was first.
        httpx.post(f"{self._base_url}/programs", json=program, headers=headers, timeout=30)
        return headers

    def ask(self) -> None:
        """Publish a poll, in which every viewer votes who is shown it. Raises httpx.HTTPError."""
        metadata = {
            "title": "Who wins?",
            "measureName": MEASURE,
            "options": OPTIONS,
            "sentMs": time.time() * 1000,
        }
        url = f"{self._base_url}/programs/{self.program}/events"
        poll = {"event": ASK, "metadata": metadata}
        httpx.post(url, json=poll, headers=self.log_in(), timeout=30).raise_for_status()

    def find_ws_url(self) -> str:
        """The gateway that the product names, unless one was given."""
        if self._ws_url:
            return self._ws_url
        return str(httpx.get(f"{self._base_url}/connect", timeout=30).raise_for_status().json()["url"])


@events.test_start.add_listener
def make_program(environment: Environment, **_: Any) -> None:
    """Make the program before the first viewer comes; end the run where that cannot be done."""
    try:
        Session(environment).log_in()
    except StopUser as error:
        _log.error("%s", error)
        raise SystemExit(1) from None


@dataclass(slots=True)
class Progress:
    """What this process knows of the show: the name of its stage, which the master tells its workers."""

    stage: str = ""

    def note(self, msg: Message, **_: Any) -> None:
        """The next stage has begun."""
        self.stage = msg.data["stage"]


PROGRESS = Progress()


@events.init.add_listener
def choose_shape(environment: Environment, **_: Any) -> None:
    """Play the show that was asked for, or none: Locust by itself would play the first that a file has."""
    assert environment.parsed_options
    assert environment.runner
    name = environment.parsed_options.shape
    environment.shape_class = environment.available_shape_classes[name] if name else None
    if environment.shape_class:
        environment.shape_class.runner = environment.runner
    if not isinstance(environment.runner, MasterRunner):
        environment.runner.register_message("stage", PROGRESS.note)


class Follower:
    """A subscription that checks the order of what it gets and reports each push to Locust."""

    def __init__(self, environment: Environment, session: Session, *, votes: bool = False) -> None:
        """Connect to nothing yet. Args: votes: once in each poll that is pushed."""
        self._environment = environment
        self._session = session
        self._socket: ClientConnection | None = None
        self._open = ExitStack()
        self._votes = votes
        self._visitor = str(uuid.uuid4())
        self._voted_s = 0.0
        self.epoch: str | None = None
        self.seq = 0

    def open(self) -> None:
        """Connect and subscribe, from where the last connection ended if there was one."""
        began = time.perf_counter()
        url = self._session.find_ws_url()
        self._socket = self._open.enter_context(connect(url, compression="deflate"))
        params: dict[str, Any] = {"programId": self._session.program}
        if self.epoch is not None:
            params["since"] = {"epoch": self.epoch, "seq": self.seq}
        self._call(SUBSCRIBE_ID, "subscribe", params)
        answer = json.loads(self._socket.recv(SILENCE_S))
        if "error" in answer:
            self._fire("subscribe", began, RuntimeError(str(answer["error"])))
            raise StopUser
        self._fire("subscribe", began, None)
        result = answer["result"]
        for missed in result["events"]:
            self._take(missed, "recovered")
        self.epoch, self.seq = result["epoch"], result["seq"]

    def close(self) -> None:
        """Leave; does nothing when not connected."""
        self._socket = None
        self._open.close()

    def receive(self) -> dict[str, Any] | None:
        """The next push's params; None after a silence."""
        assert self._socket
        try:
            message = json.loads(self._socket.recv(SILENCE_S))
        except TimeoutError:
            return None
        if message.get("id") == VOTE_ID:
            self._note_vote(message)
        params: dict[str, Any] = message.get("params", {})
        if params.get("seq"):
            self._take(params)
        if self._votes and params.get("event") == ASK:
            self._vote(str(params["id"]))
        return params

    def _vote(self, poll: str) -> None:
        self._voted_s = time.perf_counter()
        vote = {"programId": self._session.program, "contextId": poll, "measureName": MEASURE}
        choice = random.randrange(len(OPTIONS))
        self._call(VOTE_ID, "respond", vote | {"measureValue": choice, "visitorId": self._visitor})

    def _note_vote(self, answer: dict[str, Any]) -> None:
        is_counted = answer.get("result", {}).get("accepted") == 1
        fault = None if is_counted else RuntimeError(f"not counted: {answer.get('error', answer)}")
        self._fire("vote", self._voted_s, fault)

    def _call(self, number: int, method: str, params: dict[str, Any]) -> None:
        assert self._socket
        self._socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))

    def _take(self, params: dict[str, Any], name: str = "push") -> None:
        fault = None
        if self.epoch is not None and params["epoch"] == self.epoch and params["seq"] != self.seq + 1:
            fault = RuntimeError("an event was lost or came twice")
        self.epoch, self.seq = params["epoch"], params["seq"]
        sent_ms = (params.get("metadata") or {}).get("sentMs")
        late_ms = time.time() * 1000 - sent_ms if sent_ms else 0.0
        self._environment.events.request.fire(
            request_type="WS", name=name, response_time=late_ms, response_length=0, exception=fault
        )

    def _fire(self, name: str, began: float, fault: Exception | None) -> None:
        self._environment.events.request.fire(
            request_type="WS",
            name=name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=fault,
        )


def build_event() -> dict[str, Any]:
    """An event that says when it was published (ms since 1970)."""
    return {"event": "Score#update", "metadata": {"sentMs": time.time() * 1000, "home": 2, "away": 1}}


class Producer(HttpUser):
    """Publishes like a scoreboard: mostly single events, five a second."""

    host = HOST
    weight = 1
    _calm, _goal = constant_throughput(EVENTS_PER_S), constant_throughput(GOAL_EVENTS_PER_S)

    def wait_time(self) -> float:
        """Until the next event: less while there is a goal."""
        return self._goal() if PROGRESS.stage == GOAL else self._calm()

    def on_start(self) -> None:
        """Log in."""
        self.session = Session(self.environment)
        self.client.headers.update(self.session.log_in())
        self.path = f"/api/v1/programs/{self.session.program}/events"

    @tag("publish")
    @task(20)
    def publish(self) -> None:
        """One event."""
        self.client.post(self.path, json=build_event(), name="publish")

    @tag("publish")
    @task(1)
    def publish_batch(self) -> None:
        """A batch of ten."""
        batch = {"events": [build_event() for _ in range(BATCH_EVENTS)]}
        self.client.post(self.path, json=batch, name="publish batch")

    @tag("publish")
    @task(1)
    def read(self) -> None:
        """The newest events."""
        self.client.get(f"{self.path}/filter?limit=20&order=desc", name="read events")


class Viewer(User):
    """An overlay: follows the program, goes away now and then and comes back where it was."""

    host = HOST
    wait_time = between(0.1, 1)
    weight = 4

    def on_start(self) -> None:
        """Make the follower; the task connects."""
        self.follower = Follower(self.environment, Session(self.environment), votes=True)

    def on_stop(self) -> None:
        """Leave."""
        self.follower.close()

    @tag("view")
    @task
    def watch(self) -> None:
        """One stay."""
        self.follower.open()
        try:
            for _ in range(STAY_PUSHES):
                self.follower.receive()
        except ConnectionClosed:
            return
        finally:
            self.follower.close()


class Show(HttpUser):
    """A studio: publishes over HTTP and waits until its own screen shows the event."""

    host = HOST
    wait_time = constant_throughput(1)
    weight = 1

    def on_start(self) -> None:
        """Log in and follow."""
        session = Session(self.environment)
        self.client.headers.update(session.log_in())
        self.path = f"/api/v1/programs/{session.program}/events"
        self.follower = Follower(self.environment, session)
        self.follower.open()

    def on_stop(self) -> None:
        """Leave."""
        self.follower.close()

    @tag("show")
    @task
    def publish_and_see(self) -> None:
        """From the call to the own screen."""
        began = time.perf_counter()
        answer = self.client.post(self.path, json=build_event(), name="publish (show)")
        if not answer.ok:
            return
        wanted = answer.json()["id"]
        while (seen := self.follower.receive()) and seen.get("id") != wanted:
            pass
        fault = None if seen else RuntimeError("the event was not seen")
        self.environment.events.request.fire(
            request_type="SHOW",
            name="publish to own screen",
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=fault,
        )


class Shape(LoadTestShape):
    """A show of stages. It runs in the master, which tells the workers the stage."""

    abstract = True
    use_common_options = True
    stages: ClassVar[tuple[Stage, ...]]

    def __init__(self) -> None:
        super().__init__()
        self._stage = ""

    def reset_time(self) -> None:
        """Begin again."""
        super().reset_time()
        self._stage = ""

    def tick(self) -> tuple[int, float] | None:
        """Users and how fast they come or go; None when the show is over."""
        assert self.runner
        options: Any = self.runner.environment.parsed_options
        most, run_s = options.num_users or USERS, options.run_time or None
        moment = find_moment(self.stages, self.get_run_time(), most, run_s)
        if moment is None:
            return None
        if moment.stage.name != self._stage:
            self._enter(moment.stage.name)
        # Twice as fast, so that what has come in a second does not take the next one too.
        return moment.users, max(1.0, 2 * moment.users_per_s)

    def _enter(self, stage: str) -> None:
        assert self.runner
        _log.info("stage %s of %s", stage, type(self).__name__)
        self._stage = stage
        self.runner.send_message("stage", {"stage": stage})
        if stage == VOTE:
            try:
                Session(self.runner.environment).ask()
            except (httpx.HTTPError, StopUser) as error:
                _log.error("no poll: %s", error)


class FullShow(Shape):
    """Six minutes."""

    stages = FULL


class ShortShow(Shape):
    """Twenty-two seconds."""

    stages = SHORT
