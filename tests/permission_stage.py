"""What a test of permissions needs: things to do operations on, and the call of every operation on them.

`CALLS` says for each operation how it is called on each `Target` of its rule. Things to read are made once;
things to change anew for each call that is made of them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.clock import to_datetime
from broker.demo.matomo import StandIn
from broker.domain.permission_table import Target
from broker.domain.users import User
from tests.fetching.upstream import Upstream
from tests.gateway.world import World

PASSWORD = "correct horse"
LOGIN = {"grant_type": "password", "client_id": "Test", "username": "admin", "password": PASSWORD}
# Of what operations are not about: heartbeats, marks of background work, and counts.
_WATCHED = (
    "users", "revocations", "programs", "events", "event_changes", "projects", "revisions", "stored_values",
    "storage_usage", "api_tokens", "idempotency_keys", "audit", "program_changes", "answer_records",
    "image_purges",
)  # fmt: skip
_TRACES = " UNION ALL ".join(
    f"SELECT '{table}' AS name, count(*), max(xmin::text::bigint) FROM {table}"
    + ("" if table in ("events", "event_changes", "answer_records") else " WHERE account = 'demo'")
    for table in _WATCHED
)
_REVISION = """
INSERT INTO revisions (account, project_id, id, title, version, status, content, created_by, updated_by,
                       created_time, updated_time)
VALUES ('demo', $1, $2, $3, $2, $4, $5, 'x', 'x', now(), now())
"""
_STATISTICS = """
INSERT INTO statistics
VALUES ('demo', 'minute', date_trunc('minute', $1::timestamptz), $2, $3, 0, 9, 1, 0, 0, 0)
"""
_PROGRAM_FIELDS: dict[Target, dict[str, Any]] = {
    Target.PUBLIC_OWN: {"projectId": "own"},
    Target.PUBLIC_FREE: {},
    Target.PUBLIC_FOREIGN: {"projectId": "foreign"},
    Target.PRIVATE_OWN: {"access": "private", "projectId": "own"},
    Target.PRIVATE_FREE: {"access": "private"},
    Target.PRIVATE_FOREIGN: {"access": "private", "projectId": "foreign"},
}
_INTO = {Target.INTO_OWN: "own", Target.INTO_NONE: None, Target.INTO_FOREIGN: "foreign"}
_PRIVATE = {
    Target.OWN: Target.PRIVATE_OWN,
    Target.NO_PROJECT: Target.PRIVATE_FREE,
    Target.FOREIGN: Target.PRIVATE_FOREIGN,
}
_PROJECT = {Target.OWN: "own", Target.FOREIGN: "foreign", Target.UNKNOWN: "unknown"}
_REVISIONS = {
    Target.PUBLISHED_OWN: ("own", "published"),
    Target.PUBLISHED_FOREIGN: ("foreign", "published"),
    Target.DRAFT_OWN: ("own", "draft"),
    Target.DRAFT_FOREIGN: ("foreign", "draft"),
}


@dataclass
class Call:
    """The params of one call, and a text that only the answer to a caller with rights contains."""

    params: dict[str, Any]
    shows: str = ""


@dataclass(frozen=True)
class Thing:
    """A program with one event, or a revision; `secret` is in its content."""

    id: str
    secret: str
    event_id: str = ""


@dataclass
class Stage:
    """A world with the projects `own`, `foreign` and some to lose; its users belong to all but `foreign`."""

    world: World
    upstream: Upstream
    matomo: StandIn
    users: dict[str | None, User] = field(default_factory=dict)
    _made: dict[Any, Thing] = field(default_factory=dict)
    _spare: list[str] = field(default_factory=lambda: ["spare-0", "spare-1", "spare-2"])
    _count: int = 0

    @classmethod
    async def open(cls, world: World, upstream: Upstream, matomo: StandIn) -> "Stage":
        stage = cls(world, upstream, matomo)
        for project in ("own", "foreign", *stage._spare):
            await stage.ask("POST", "/projects", {"id": project, "name": f"secret of {project}"})
        for role in ("admin", "producer", "user", "client"):
            username = f"{role} of own"
            projects = ("own", *stage._spare) if role == "admin" else ("own",)
            world.product.tokens[role] = await world.new_user(username, role, *projects)
            credentials = await world.product.services.users.find_credentials("demo", username)
            assert credentials is not None
            stage.users[role] = credentials.user
        stage.users[None] = stage.users["user"]
        await world.new_user("member of foreign", "user", "foreign")
        for project in ("own", "foreign"):
            for status in ("published", "draft"):
                await stage.revision(project, status)
        return stage

    def name(self) -> str:
        """A name that nothing has, and that is part of no other name."""
        self._count += 1
        return f"made-{self._count:06}"

    async def ask(self, method: str, path: str, body: Any = None, role: str = "admin") -> Any:
        """The answer to a request that succeeds."""
        async with self.world.product.door(role) as door:
            answer = await door.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def execute(self, statement: str, *values: object) -> Any:
        async with self.world.product.services.database.connection() as connection:
            return await connection.fetch(statement, *values)

    async def traces(self) -> dict[str, Any]:
        """By table, what differs after every change of what the account has; and requests to the upstream."""
        rows = {row["name"]: tuple(row) for row in await self.execute(_TRACES)}
        return rows | {"upstream": len(self.upstream.seen)}

    async def program(self, target: Target, *, fresh: bool = False, **fields: Any) -> Thing:
        """A program with one event, scheduled for now; of a target once unless it is to be fresh."""
        if target is Target.UNKNOWN:
            return Thing("unknown", "secret of nothing", "01234567-89ab-7def-8123-456789abcdef")
        if fresh or target not in self._made:
            id_ = self.name()
            secret = f"secret of {id_}"
            product = self.world.product
            times = {"scheduledStartTime": "2020-01-01", "scheduledEndTime": "2100-01-01"}
            await product.make_program(id_, name=secret, **times, **_PROGRAM_FIELDS[target], **fields)
            (event,) = await product.publish(id_, {"event": "A#b", "metadata": {"is": secret}})
            made = Thing(id_, secret, event["id"])
            if fresh:
                return made
            self._made[target] = made
        return self._made[target]

    async def revision(self, project: str, status: str) -> Thing:
        """A revision with a data source; of a project and status once."""
        if (project, status) not in self._made:
            id_, secret = self.name(), f"secret of {project}"
            source = {"id": "a", "type": "api", "url": f"http://127.0.0.1:{self.upstream.port}/"}
            content = orjson.dumps({"is": secret, "dataSources": [source]}).decode()
            await self.execute(_REVISION, project, id_, secret, status, content)
            self._made[project, status] = Thing(id_, secret)
        return self._made[project, status]

    async def spare_project(self) -> str:
        """A project of the admin's that may be deleted. Its connections end with the membership."""
        rows = await self.execute("SELECT id FROM projects WHERE id = ANY($1) LIMIT 1", self._spare)
        return str(rows[0]["id"])

    async def user(self) -> str:
        """A new user's id."""
        body = {"username": self.name(), "password": PASSWORD, "role": "user"}
        return str((await self.ask("POST", "/users", body))["id"])

    async def api_token(self, role: str | None) -> str:
        """The id of a new API token of the role's user."""
        role = role if role in ("admin", "producer") else "user"
        return str((await self.ask("POST", "/users/me/tokens", {"name": self.name()}, role))["id"])


Build = Callable[[Stage, Target, str | None], Awaitable[Call]]
CALLS: dict[str, Build] = {}


def _calls(*names: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        for name in names:
            CALLS[name] = build
        return build

    return register


def _constant(name: str, shows: str = "", **params: Any) -> None:
    async def build(_stage: Stage, _target: Target, _role: str | None) -> Call:
        return Call(params, shows)

    CALLS[name] = build


_constant("login", '"access_token":', **LOGIN)
_constant("getVersion", '"buildNumber":')
_constant("getHealth", '"parts":')
_constant("servertime", '"serverTime":')
_constant("connect", '"servers":')
_constant("ping", '"current_time":')
_constant("listRoles", '"producer"')
_constant("listUsers", '"member of foreign"')
_constant("filterAudit", '"items":')
_constant("filterImageStatistics", '"series":', to="2020-01-01")
_constant("purgeImages", url="https://a.test/a.png")
_constant("warmImages", '"images":', urls=["https://a.test/a.png"], options=["w=51"])


# -- programs and events


def _on_program(
    name: str, shows: str = "", *, fresh: bool = False, event: bool = False, **params: Any
) -> None:
    """An operation on a program; what it shows is the program's secret unless told."""

    async def build(stage: Stage, target: Target, _role: str | None) -> Call:
        program = await stage.program(target, fresh=fresh)
        named = {"programId": program.id} | ({"eventId": program.event_id} if event else {})
        return Call(named | params, shows or ("" if fresh else program.secret))

    CALLS[name] = build


_on_program("getProgram")
_on_program("getLastUpdate", '"epoch":')
_on_program("getProgramEvents")
_on_program("filterProgramEvents")
_on_program("exportProgramEvents")
_on_program("getProgramEvent", event=True)
_on_program("admin/deleteProgram", fresh=True)
_on_program("importProgramEvents", '"imported":0', fresh=True, events=[])
_on_program("deleteAllProgramEvents", '"deleted":1', fresh=True)
_on_program("deleteProgramEvent", fresh=True, event=True)


@_calls("producer")
async def _publish(stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({"programId": (await stage.program(target)).id, "event": "C#d"}, '"C#d"')


@_calls("updateProgramEvent")
async def _update_event(stage: Stage, target: Target, _role: str | None) -> Call:
    program = await stage.program(target, fresh=True)
    return Call({"programId": program.id, "eventId": program.event_id, "event": "C#d"}, '"C#d"')


@_calls("admin/createProgram")
async def _create_program(stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({"id": stage.name(), "name": "made", "projectId": _INTO[target]}, '"made"')


@_calls("updateProgram")
async def _update_program(stage: Stage, target: Target, _role: str | None) -> Call:
    moves = {"projectId": _INTO[target]} if target in _INTO else {}
    at = Target.PUBLIC_FREE if target in _INTO else target
    program = await stage.program(at, fresh=True)
    times = {"scheduledStartTime": None, "scheduledEndTime": None}
    return Call(
        {"programId": program.id, "id": program.id, "name": "new name", **times, **moves}, '"new name"'
    )


@_calls("getProducerPrograms", "admin/getLivePrograms")
async def _list_programs(stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({}, (await stage.program(_PRIVATE[target])).secret)


@_calls("filterPrograms")
async def _filter_programs(stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({"limit": 1000, "search": "secret"}, (await stage.program(_PRIVATE[target])).secret)


# -- audience answers


def _vote(program: Thing, target: Target) -> dict[str, Any]:
    project = _PROGRAM_FIELDS.get(target, {}).get("projectId", "undefined")
    return {"accountId": "demo", "projectId": project, "programId": program.id}


@_calls("addResponses")
async def _add_responses(stage: Stage, target: Target, _role: str | None) -> Call:
    program = await stage.program(target)
    answer = {"measureName": "vote", "contextId": program.event_id, "measureValue": 1}
    answers = {"responses": [answer | {"visitorId": stage.name()}]}
    return Call(_vote(program, target) | answers, '"accepted":1')


@_calls("respond")
async def _respond(stage: Stage, target: Target, _role: str | None) -> Call:
    call = await _add_responses(stage, target, _role)
    (answer,) = call.params.pop("responses")
    return Call(call.params | answer, call.shows)


@_calls("impression")
async def _impression(stage: Stage, target: Target, _role: str | None) -> Call:
    call = await _respond(stage, target, _role)
    del call.params["measureValue"]
    return call


@_calls("getResponseReport")
async def _report(stage: Stage, target: Target, _role: str | None) -> Call:
    at = _PRIVATE.get(target, target)
    return Call(_vote(await stage.program(at), at), '"responses":')


@_calls("getResponseIntegrity")
async def _integrity(stage: Stage, target: Target, _role: str | None) -> Call:
    at = _PRIVATE.get(target, target)
    return Call(_vote(await stage.program(at), at), '"polls":')


_constant("createVisitor", '"visitorId":')
_constant("getResponseResults", '"total":', accountId="demo", responseName="vote")


# -- statistics


@_calls("getDashboard")
async def _dashboard(stage: Stage, target: Target, _role: str | None) -> Call:
    program = await stage.program(_PRIVATE[target])
    now = to_datetime(stage.world.product.services.clock.now_ms())
    project = {Target.OWN: "own", Target.FOREIGN: "foreign"}.get(target, "")
    known = await stage.execute("SELECT 1 FROM statistics WHERE program_id = $1", program.id)
    if not known:
        await stage.execute(_STATISTICS, now, program.id, project)
    return Call({}, f'"{program.id}"')


@_calls("filterStatistics")
async def _statistics(stage: Stage, target: Target, role: str | None) -> Call:
    at = _PRIVATE.get(target, target)
    params = {"programId": (await stage.program(at)).id}
    if target in (Target.OWN, Target.FOREIGN) and role != "producer":  # it asks for the program alone
        params["projectId"] = _PROJECT[target]
    return Call(params, '"series":')


# -- projects and revisions


def _on_project(name: str, shows: str, **params: Any) -> None:
    async def build(_stage: Stage, target: Target, _role: str | None) -> Call:
        project = _PROJECT[target]
        return Call({"projectId": project} | params, shows.format(project))

    CALLS[name] = build


_on_project("getProject", "secret of {}")
_on_project("listProjectUsers", "of {}")
_on_project("getPublishedRevision", "secret of {}")
_on_project("getRevisionByStatus", "secret of {}", status="draft")
_on_project("getLatestRevision", "secret of {}")
_on_project("listRevisions", "secret of {}")


@_calls("createRevision", "createProjectRevision")
async def _create_revision(_stage: Stage, target: Target, _role: str | None) -> Call:
    title = f"secret of {_PROJECT[target]}"  # for it is the latest now
    return Call({"projectId": _PROJECT[target], "title": title}, title)


@_calls("listProjects")
async def _list_projects(_stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({}, f"secret of {_PROJECT[target]}")


@_calls("createProject")
async def _create_project(stage: Stage, _target: Target, _role: str | None) -> Call:
    return Call({"id": stage.name(), "name": "made"}, '"made"')


@_calls("updateProject")
async def _update_project(stage: Stage, target: Target, _role: str | None) -> Call:
    text = stage.name()
    return Call({"projectId": _PROJECT[target], "description": text}, f'"{text}"')


@_calls("deleteProject")
async def _delete_project(stage: Stage, target: Target, role: str | None) -> Call:
    if target is Target.OWN:
        return Call({"projectId": await stage.spare_project() if role == "admin" else "own"})
    if target is Target.FOREIGN:
        id_ = stage.name()
        await stage.ask("POST", "/projects", {"id": id_, "name": "foreign"})
        return Call({"projectId": id_})
    return Call({"projectId": "unknown"})


@_calls("listProjectPrograms")
async def _list_project_programs(stage: Stage, target: Target, _role: str | None) -> Call:
    program = await stage.program(_PRIVATE.get(target, target))
    return Call({"projectId": _PROJECT[target]}, program.secret)


async def _draft(stage: Stage, target: Target) -> Thing:
    return (
        Thing("x", "secret of nothing")
        if target is Target.UNKNOWN
        else await stage.revision(_PROJECT[target], "draft")
    )


@_calls("getRevision")
async def _get_revision(stage: Stage, target: Target, _role: str | None) -> Call:
    revision = await _draft(stage, target)
    return Call({"projectId": _PROJECT[target], "revisionId": revision.id}, revision.secret)


@_calls("getRevisionByVersion")
async def _get_version(stage: Stage, target: Target, _role: str | None) -> Call:
    revision = await _draft(stage, target)
    return Call({"projectId": _PROJECT[target], "version": revision.id}, revision.secret)


@_calls("updateRevision")
async def _update_revision(stage: Stage, target: Target, _role: str | None) -> Call:
    revision, text = await _draft(stage, target), stage.name()
    return Call({"projectId": _PROJECT[target], "revisionId": revision.id, "description": text}, f'"{text}"')


@_calls("patchRevision")
async def _patch_revision(stage: Stage, target: Target, _role: str | None) -> Call:
    revision, text = await _draft(stage, target), stage.name()
    patch = {"description": text}
    return Call({"projectId": _PROJECT[target], "revisionId": revision.id, "patch": patch}, f'"{text}"')


async def _version(stage: Stage, target: Target) -> tuple[dict[str, Any], Thing]:
    if target is Target.UNKNOWN:
        return {"projectId": "own", "version": "unknown"}, Thing("x", "secret of nothing")
    project, status = _REVISIONS[target]
    revision = await stage.revision(project, status)
    return {"projectId": project, "version": revision.id}, revision


@_calls("getLiveRevision")
async def _live(stage: Stage, target: Target, _role: str | None) -> Call:
    params, revision = await _version(stage, target)
    return Call(params, revision.secret)


@_calls(
    "getApplicationRequest", "postApplicationRequest", "putApplicationRequest", "deleteApplicationRequest"
)
async def _source_request(stage: Stage, target: Target, _role: str | None) -> Call:
    params, _ = await _version(stage, target)
    return Call(params | {"dataSourceId": "a"}, "from the upstream")


# -- analytics


async def _sited(stage: Stage, target: Target) -> str:
    """A project whose site Matomo has."""
    project = _PROJECT[target]
    if target is not Target.UNKNOWN:
        async with stage.world.product.door("admin") as door:
            answer = await door.post(f"/projects/{project}/analytics/site")
            if answer.status_code != 201:
                answer = await door.put(f"/projects/{project}/analytics/site")
        assert answer.is_success, answer.text
    return project


@_calls("getAnalyticsSite")
async def _site(stage: Stage, target: Target, _role: str | None) -> Call:
    project = await _sited(stage, target)
    return Call({"projectId": project}, f'"group":"{project}"')


@_calls("createAnalyticsSite")
async def _create_site(stage: Stage, target: Target, _role: str | None) -> Call:
    project = _PROJECT[target]
    await stage.execute("UPDATE projects SET metadata = '{}' WHERE account = 'demo' AND id = $1", project)
    return Call({"projectId": project}, f'"group":"{project}"')


@_calls("completeAnalyticsSite")
async def _complete_site(stage: Stage, target: Target, _role: str | None) -> Call:
    project = await _sited(stage, target)
    for site in stage.matomo.sites.values():
        site.access.clear()
    return Call({"projectId": project}, f'"group":"{project}"')


@_calls(
    "getAnalyticsReport",
    "postAnalyticsReport",
    "putAnalyticsReport",
    "patchAnalyticsReport",
    "deleteAnalyticsReport",
)
async def _analytics_report(stage: Stage, target: Target, _role: str | None) -> Call:
    params = {"projectId": await _sited(stage, target), "method": "VisitsSummary.get"}
    return Call(params | {"period": "day", "date": "2026-07-01"}, '"nb_visits":')


@_calls("getAnalyticsSnippet")
async def _snippet(stage: Stage, target: Target, _role: str | None) -> Call:
    return Call({"projectId": await _sited(stage, target)}, "setSiteId")


# -- stored values


async def _stored(stage: Stage) -> str:
    id_ = stage.name()
    await stage.ask("POST", "/storage/foreign", {"id": id_, "metadata": {"is": "stored"}})
    return id_


@_calls("getStoredValue")
async def _read_value(stage: Stage, target: Target, _role: str | None) -> Call:
    id_ = "unknown" if target is Target.UNKNOWN else await _stored(stage)
    return Call({"projectId": "foreign", "itemId": id_}, '"stored"')


@_calls("storeValue")
async def _store_value(stage: Stage, target: Target, _role: str | None) -> Call:
    id_ = await _stored(stage) if target is Target.STORED_VALUE else stage.name()
    project = "unknown" if target is Target.UNKNOWN else "foreign"
    return Call({"projectId": project, "id": id_, "metadata": {"is": "new value"}}, '"new value"')


@_calls("deleteStoredValue")
async def _delete_value(stage: Stage, target: Target, _role: str | None) -> Call:
    project = {Target.OWN: "own", Target.FOREIGN: "foreign", Target.UNKNOWN: "unknown"}[target]
    id_ = stage.name()
    if target is not Target.UNKNOWN:
        await stage.ask("POST", f"/storage/{project}", {"id": id_, "metadata": {}})
    return Call({"projectId": project, "itemId": id_}, "")


# -- users and API tokens


def _own_change(stage: Stage, target: Target, role: str | None) -> dict[str, Any]:
    return {
        Target.OWN_PROFILE: {"name": stage.name()},
        Target.OWN_RIGHTS: {"username": stage.name()},
        Target.OWN_ROLE: {"role": "client" if role == "user" else "user"},
    }[target]


@_calls("getCurrentUser")
async def _me(stage: Stage, _target: Target, role: str | None) -> Call:
    return Call({}, f'"{stage.users[role].id}"')


@_calls("updateCurrentUser")
async def _update_me(stage: Stage, target: Target, role: str | None) -> Call:
    return Call(_own_change(stage, target, role), '"username":')


@_calls("createUser")
async def _create_user(stage: Stage, _target: Target, _role: str | None) -> Call:
    return Call({"username": stage.name(), "password": PASSWORD, "role": "admin"}, '"username":')


@_calls("getUser", "deleteUser")
async def _on_user(stage: Stage, target: Target, role: str | None) -> Call:
    if target is Target.UNKNOWN:
        return Call({"userId": "unknown"})
    if target is Target.OTHER_USER:
        return Call({"userId": await stage.user()})
    return Call({"userId": stage.users[role].id}, '"username":')


@_calls("updateUser")
async def _update_user(stage: Stage, target: Target, role: str | None) -> Call:
    call = await _on_user(stage, target, role)
    if target in (Target.OTHER_USER, Target.UNKNOWN):
        return Call(call.params | {"role": "producer", "projectIds": ["foreign"]}, '"username":')
    return Call(call.params | _own_change(stage, target, role), '"username":')


@_calls("createApiToken")
async def _create_api_token(stage: Stage, _target: Target, _role: str | None) -> Call:
    return Call({"name": stage.name()}, '"token":')


@_calls("listApiTokens")
async def _list_api_tokens(stage: Stage, _target: Target, role: str | None) -> Call:
    return Call({}, await stage.api_token(role))


@_calls("deleteApiToken")
async def _revoke_api_token(stage: Stage, target: Target, role: str | None) -> Call:
    match target:
        case Target.OWN_API_TOKEN:
            return Call({"tokenId": await stage.api_token(role)})
        case Target.OTHER_API_TOKEN:
            return Call({"tokenId": await stage.api_token("producer" if role == "user" else "user")})
    return Call({"tokenId": "unknown"})
