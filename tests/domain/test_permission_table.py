"""What the permission table must say, written down a second time and in another way: sentence by sentence.

The table is what the server does (tests/test_permissions.py); that it says the right thing is proved here.
"""

import pytest

from broker.domain.permission_table import PERMISSIONS, ROLES, SUBSCRIPTIONS, Rule, Target, Verdict
from broker.domain.users import RANKED_ROLES, Role

ALL: dict[str, Rule] = {**PERMISSIONS, **{f"subscribe {name}": rule for name, rule in SUBSCRIPTIONS.items()}}
WITHOUT_TOKEN = {
    "login",
    "getVersion",
    "servertime",
    "connect",
    "getProgramEvents",
    "getLiveRevision",
    "getStoredValue",
    "storeValue",
    "addResponses",
    "respond",
    "impression",
    "createVisitor",
    "getResponseResults",
    "subscribe program",
    "subscribe storage:",
    "subscribe responses:",
}
ANSWERS = {"addResponses", "respond", "impression"}
ANY_TOKEN = {
    "ping",
    "listRoles",
    "getCurrentUser",
    "getUser",
    "getProgram",
    "getLastUpdate",
    "filterProgramEvents",
    "exportProgramEvents",
    "getProgramEvent",
    "getApplicationRequest",
    "postApplicationRequest",
    "putApplicationRequest",
    "deleteApplicationRequest",
}
PUBLISHERS = {
    "admin/createProgram",
    "getProducerPrograms",
    "filterPrograms",
    "updateProgram",
    "admin/deleteProgram",
    "producer",
    "importProgramEvents",
    "deleteAllProgramEvents",
    "updateProgramEvent",
    "deleteProgramEvent",
    "listProjectUsers",
    "createRevision",
    "createProjectRevision",
    "updateRevision",
    "patchRevision",
    "deleteStoredValue",
    "getAnalyticsSite",
    "createAnalyticsSite",
    "completeAnalyticsSite",
    "warmImages",
}
ADMINS = {
    "createProject",
    "updateProject",
    "deleteProject",
    "getHealth",
    "listUsers",
    "createUser",
    "deleteUser",
    "filterAudit",
    "purgeImages",
}
FOREIGN = {target for target in Target if "foreign" in target or target is Target.OTHER_USER}
# Foreign things that are open to more than admins: what is public, and what end users' applications use.
OPEN_TO_OTHERS = {Target.PUBLIC_FOREIGN, Target.PUBLISHED_FOREIGN}


def allowed(rule: Rule, role: Role | None) -> set[Target]:
    return {target for target in rule.rows if rule.allows(role, target)}


def names(audience: set[Role] | None) -> set[str]:
    return {name for name, rule in ALL.items() if rule.audience == audience}


def test_every_role_has_a_rank() -> None:
    assert sorted(RANKED_ROLES) == sorted(Role)


def test_who_may_call_what() -> None:
    assert names(None) == WITHOUT_TOKEN
    assert names(set(Role)) == ANY_TOKEN
    assert names({Role.ADMIN, Role.PRODUCER}) == PUBLISHERS
    assert names({Role.ADMIN}) == ADMINS
    readers = set(ALL) - WITHOUT_TOKEN - ANY_TOKEN - PUBLISHERS - ADMINS
    assert names({Role.ADMIN, Role.PRODUCER, Role.USER}) == readers


@pytest.mark.parametrize("name", ALL)
def test_an_admin_may_do_everything(name: str) -> None:
    rule = ALL[name]
    not_there = {Target.UNKNOWN, Target.OTHER_API_TOKEN}
    if name == "getLiveRevision":
        not_there |= {Target.DRAFT_OWN, Target.DRAFT_FOREIGN}
    assert allowed(rule, Role.ADMIN) == set(rule.rows) - not_there - {Target.OWN_ROLE}


@pytest.mark.parametrize("name", ALL)
def test_each_role_may_do_what_the_one_below_it_may(name: str) -> None:
    rule = ALL[name]
    assert allowed(rule, Role.ADMIN) >= allowed(rule, Role.PRODUCER) >= allowed(rule, Role.USER)
    assert allowed(rule, Role.CLIENT) >= allowed(rule, None)
    assert allowed(rule, Role.USER) >= allowed(rule, None)


@pytest.mark.parametrize("name", ALL)
def test_what_is_foreign_is_the_admins_alone(name: str) -> None:
    for target in FOREIGN & ALL[name].rows.keys() - OPEN_TO_OTHERS:
        assert {role for role in ROLES if ALL[name].allows(role, target)} <= {Role.ADMIN}, target


@pytest.mark.parametrize("name", ALL)
def test_without_a_token_is_401_wherever_one_is_needed(name: str) -> None:
    verdicts = {ALL[name].verdict(None, target) for target in ALL[name].rows}
    if name not in WITHOUT_TOKEN:
        assert verdicts == {Verdict.E401}
    if Target.PRIVATE_FOREIGN in ALL[name].rows:
        alike = {target for target in ALL[name].rows if "private" in target or target is Target.UNKNOWN}
        hidden = Verdict.E404 if name in ANSWERS else Verdict.E401
        assert {ALL[name].verdict(None, target) for target in alike} == {hidden}


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_there_is_404_for_whoever_may_ask(name: str) -> None:
    rule = ALL[name]
    for role in ROLES if Target.UNKNOWN in rule.rows else ():
        verdict = rule.verdict(role, Target.UNKNOWN)
        if role is Role.ADMIN:
            assert verdict is Verdict.E404
        assert verdict in (Verdict.E401, Verdict.E403, Verdict.E404)


# One line for each sentence about a cell: admin, producer, user, client, no token.
SENTENCES = [
    # A token of too low a role is 403: a client on a private program, a producer changing one of others.
    ("getProgram", Target.PRIVATE_OWN, "yes yes yes 403 401"),
    ("getProgram", Target.PRIVATE_FOREIGN, "yes 404 404 403 401"),
    ("getProgram", Target.PUBLIC_FOREIGN, "yes yes yes yes 401"),
    ("producer", Target.PUBLIC_FOREIGN, "yes 403 403 403 401"),
    ("producer", Target.PRIVATE_FOREIGN, "yes 404 403 403 401"),
    ("producer", Target.PUBLIC_FREE, "yes yes 403 403 401"),
    ("admin/deleteProgram", Target.PRIVATE_FREE, "yes yes 403 403 401"),
    ("importProgramEvents", Target.PUBLIC_OWN, "yes yes 403 403 401"),
    # Of a program's routes the list of events alone, and subscriptions, are open without a token.
    ("getProgramEvents", Target.PUBLIC_FOREIGN, "yes yes yes yes yes"),
    ("getProgramEvents", Target.PRIVATE_FREE, "yes yes yes 403 401"),
    ("getProgramEvents", Target.UNKNOWN, "404 404 404 404 401"),
    ("subscribe program", Target.PUBLIC_OWN, "yes yes yes yes yes"),
    ("subscribe program", Target.PRIVATE_FOREIGN, "yes 404 404 403 401"),
    # Producers create programs in their projects or without one, and move them there only.
    ("admin/createProgram", Target.INTO_OWN, "yes yes 403 403 401"),
    ("admin/createProgram", Target.INTO_NONE, "yes yes 403 403 401"),
    ("admin/createProgram", Target.INTO_FOREIGN, "yes 403 403 403 401"),
    ("updateProgram", Target.INTO_FOREIGN, "yes 403 403 403 401"),
    # Lists of programs need publishing rights and show what may be published to.
    ("getProducerPrograms", Target.NO_PROJECT, "yes yes 403 403 401"),
    ("filterPrograms", Target.FOREIGN, "yes out 403 403 401"),
    # Projects.
    ("getProject", Target.OWN, "yes yes yes 403 401"),
    ("getProject", Target.FOREIGN, "yes 404 404 403 401"),
    ("listProjects", Target.FOREIGN, "yes out out 403 401"),
    ("listProjectUsers", Target.OWN, "yes yes 403 403 401"),
    ("listProjectUsers", Target.FOREIGN, "yes 404 403 403 401"),
    ("updateProject", Target.OWN, "yes 403 403 403 401"),
    # Revisions: producers manage those of their projects, readers see drafts, the live view is everybody's.
    ("patchRevision", Target.OWN, "yes yes 403 403 401"),
    ("patchRevision", Target.FOREIGN, "yes 404 403 403 401"),
    ("getRevision", Target.OWN, "yes yes yes 403 401"),
    ("getLiveRevision", Target.PUBLISHED_FOREIGN, "yes yes yes yes yes"),
    ("getLiveRevision", Target.DRAFT_OWN, "404 404 404 404 404"),
    # Requests of data sources: who reads the project; clients for published revisions only.
    ("postApplicationRequest", Target.DRAFT_OWN, "yes yes yes 403 401"),
    ("postApplicationRequest", Target.DRAFT_FOREIGN, "yes 404 404 403 401"),
    ("postApplicationRequest", Target.PUBLISHED_FOREIGN, "yes 404 404 yes 401"),
    # Stored values: anybody reads and adds; only with a token is one stored in place of another.
    ("getStoredValue", Target.STORED_VALUE, "yes yes yes yes yes"),
    ("storeValue", Target.NEW_VALUE, "yes yes yes yes yes"),
    ("storeValue", Target.STORED_VALUE, "yes yes yes yes 409"),
    ("deleteStoredValue", Target.OWN, "yes yes 403 403 401"),
    ("deleteStoredValue", Target.FOREIGN, "yes 404 403 403 401"),
    # Audience answers: whoever may read the program; without a token a private one is not there.
    ("addResponses", Target.PUBLIC_FOREIGN, "yes yes yes yes yes"),
    ("respond", Target.PRIVATE_OWN, "yes yes yes 404 404"),
    ("impression", Target.PRIVATE_FOREIGN, "yes 404 404 404 404"),
    ("getResponseReport", Target.OWN, "yes yes yes 403 401"),
    ("getResponseReport", Target.FOREIGN, "yes 404 404 403 401"),
    ("getResponseIntegrity", Target.OWN, "yes yes yes 403 401"),
    ("getResponseIntegrity", Target.FOREIGN, "yes 404 404 403 401"),
    ("createVisitor", Target.ANYTHING, "yes yes yes yes yes"),
    ("getResponseResults", Target.ANYTHING, "yes yes yes yes yes"),
    ("subscribe responses:", Target.PUBLIC_FOREIGN, "yes yes yes yes yes"),
    ("subscribe responses:", Target.PRIVATE_OWN, "yes yes yes 403 401"),
    # Analytics: producers set sites up, who reads the project reads reports.
    ("createAnalyticsSite", Target.OWN, "yes yes 403 403 401"),
    ("getAnalyticsSite", Target.FOREIGN, "yes 404 403 403 401"),
    ("postAnalyticsReport", Target.OWN, "yes yes yes 403 401"),
    ("getAnalyticsReport", Target.FOREIGN, "yes 404 404 403 401"),
    ("getAnalyticsSnippet", Target.OWN, "yes yes yes 403 401"),
    # Users: their own profile; rights by an admin; nobody its own role.
    ("updateUser", Target.OWN_PROFILE, "yes yes yes 403 401"),
    ("updateUser", Target.OWN_RIGHTS, "yes 403 403 403 401"),
    ("updateUser", Target.OWN_ROLE, "403 403 403 403 401"),
    ("updateCurrentUser", Target.OWN_ROLE, "403 403 403 403 401"),
    ("getUser", Target.OTHER_USER, "yes 403 403 403 401"),
    ("deleteUser", Target.OTHER_USER, "yes 403 403 403 401"),
    ("deleteApiToken", Target.OTHER_API_TOKEN, "404 404 404 403 401"),
    # Statistics are of the own projects.
    ("getDashboard", Target.FOREIGN, "yes out out 403 401"),
    ("filterStatistics", Target.FOREIGN, "yes 404 404 403 401"),
    ("subscribe programs", Target.PUBLIC_FOREIGN, "yes yes yes 403 401"),
    ("subscribe programs", Target.PRIVATE_FOREIGN, "yes out out 403 401"),
    ("subscribe project:", Target.FOREIGN, "yes 404 404 403 401"),
]
WORDS = {
    "yes": Verdict.YES,
    "out": Verdict.OUT,
    "401": Verdict.E401,
    "403": Verdict.E403,
    "404": Verdict.E404,
    "409": Verdict.E409,
}


@pytest.mark.parametrize(("name", "target", "row"), SENTENCES)
def test_sentences(name: str, target: Target, row: str) -> None:
    assert ALL[name].rows[target] == tuple(WORDS[word] for word in row.split())
