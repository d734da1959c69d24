"""The permission table: for every operation, what each role may do, by relation to the resource.

This is all there is about who may do what; `broker.domain.permissions` looks things up here, and nothing else
decides. A `Rule` is a small table: its rows are what an operation can be about (`Target`), as the caller
stands to it; its columns are the roles, and last the caller without a token. `PERMISSIONS` names the rule of
every operation, `SUBSCRIPTIONS` those of what can be followed over WebSocket.

A resource of another account is never more than unknown, and a token of another account is refused before
anything is looked up here.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

from broker.domain.users import RANKED_ROLES, Role

ROLES: tuple[Role | None, ...] = (*RANKED_ROLES, None)
"""The columns of every rule; None is a caller without a token."""


class Verdict(Enum):
    """What a caller gets."""

    YES = "it is done"
    OUT = "an answer without it"
    E401 = "401 invalid_token"
    E403 = "403 insufficient_scope"
    E404 = "404 not_found"
    E409 = "409 conflict"


class Target(StrEnum):
    """What an operation is about, as the caller stands to it.

    `own` is what belongs to a project of the caller's, `foreign` what belongs to another project.
    """

    ANYTHING = "anything"
    UNKNOWN = "nothing that is there"
    # A program, or the project that a program is made in or moved to.
    PUBLIC_OWN = "public program, own project"
    PUBLIC_FREE = "public program without project"
    PUBLIC_FOREIGN = "public program, foreign project"
    PRIVATE_OWN = "private program, own project"
    PRIVATE_FREE = "private program without project"
    PRIVATE_FOREIGN = "private program, foreign project"
    INTO_OWN = "into an own project"
    INTO_NONE = "into no project"
    INTO_FOREIGN = "into a foreign project"
    # A project and what is in it.
    OWN = "own project"
    NO_PROJECT = "no project"
    FOREIGN = "foreign project"
    PUBLISHED_OWN = "published revision, own project"
    PUBLISHED_FOREIGN = "published revision, foreign project"
    DRAFT_OWN = "draft, own project"
    DRAFT_FOREIGN = "draft, foreign project"
    NEW_VALUE = "new stored value"
    STORED_VALUE = "stored value"
    # Users and their tokens.
    OWN_PROFILE = "own name, e-mail address and password"
    OWN_RIGHTS = "own user name and projects"
    OWN_ROLE = "own role"
    OTHER_USER = "another user"
    OWN_API_TOKEN = "own API token"  # noqa: S105 - a kind of thing
    OTHER_API_TOKEN = "API token of another user"  # noqa: S105 - a kind of thing


class Rule:
    """One small table. Immutable.

    Attributes:
        rows: a verdict for each of `ROLES`, by target.
        audience: the roles that may get something else than 403; None when callers without a token may too.
    """

    __slots__ = ("_verdicts", "audience", "rows")

    def __init__(self, rows: Mapping[Target, tuple[Verdict, Verdict, Verdict, Verdict, Verdict]]) -> None:
        self.rows = dict(rows)
        self._verdicts = {
            (role, target): verdict
            for target, row in self.rows.items()
            for role, verdict in zip(ROLES, row, strict=True)
        }
        self.audience = self._audience()

    def verdict(self, role: Role | None, target: Target) -> Verdict:
        """What a caller of this role gets. Raises KeyError for what the operation is never about."""
        return self._verdicts[role, target]

    def allows(self, role: Role | None, target: Target) -> bool:
        """Whether it is done for a caller of this role."""
        return self._verdicts[role, target] is Verdict.YES

    def __or__(self, other: "Rule") -> "Rule":
        """The rows of both."""
        return Rule(self.rows | other.rows)

    def _audience(self) -> frozenset[Role] | None:
        if any(row[-1] is not Verdict.E401 for row in self.rows.values()):
            return None
        heard = {role for (role, _), verdict in self._verdicts.items() if verdict is not Verdict.E403}
        return frozenset(role for role in heard if role is not None)


YES, OUT = Verdict.YES, Verdict.OUT
E401, E403, E404, E409 = Verdict.E401, Verdict.E403, Verdict.E404, Verdict.E409

# fmt: off
#                           admin prod. user  client no token
OPEN = Rule({
    Target.ANYTHING:        (YES, YES,  YES,  YES,  YES),
})
ANY_TOKEN = Rule({
    Target.ANYTHING:        (YES, YES,  YES,  YES,  E401),
})
ADMIN_ONLY = Rule({
    Target.ANYTHING:        (YES, E403, E403, E403, E401),
})

# Programs: whoever belongs to the project reads it, and a public one is everybody's. A private program of a
# foreign project is not there for those who read private ones of their own. Native code lets everybody
# follow a public program without asking here: change it too.
_READ_PRIVATE = Rule({
    Target.PRIVATE_OWN:     (YES, YES,  YES,  E403, E401),
    Target.PRIVATE_FREE:    (YES, YES,  YES,  E403, E401),
    Target.PRIVATE_FOREIGN: (YES, E404, E404, E403, E401),
    Target.UNKNOWN:         (E404, E404, E404, E404, E401),
})
PROGRAM_READ = _READ_PRIVATE | Rule({
    Target.PUBLIC_OWN:      (YES, YES,  YES,  YES,  E401),
    Target.PUBLIC_FREE:     (YES, YES,  YES,  YES,  E401),
    Target.PUBLIC_FOREIGN:  (YES, YES,  YES,  YES,  E401),
})
PROGRAM_FOLLOW = _READ_PRIVATE | Rule({
    Target.PUBLIC_OWN:      (YES, YES,  YES,  YES,  YES),
    Target.PUBLIC_FREE:     (YES, YES,  YES,  YES,  YES),
    Target.PUBLIC_FOREIGN:  (YES, YES,  YES,  YES,  YES),
})
# Answering a program: where the caller may not, it is not there, as nobody is asked who answers.
PROGRAM_ANSWER = Rule({
    Target.PUBLIC_OWN:      (YES, YES,  YES,  YES,  YES),
    Target.PUBLIC_FREE:     (YES, YES,  YES,  YES,  YES),
    Target.PUBLIC_FOREIGN:  (YES, YES,  YES,  YES,  YES),
    Target.PRIVATE_OWN:     (YES, YES,  YES,  E404, E404),
    Target.PRIVATE_FREE:    (YES, YES,  YES,  E404, E404),
    Target.PRIVATE_FOREIGN: (YES, E404, E404, E404, E404),
    Target.UNKNOWN:         (E404, E404, E404, E404, E404),
})
PROGRAM_CHANGE = Rule({
    Target.PUBLIC_OWN:      (YES, YES,  E403, E403, E401),
    Target.PUBLIC_FREE:     (YES, YES,  E403, E403, E401),
    Target.PUBLIC_FOREIGN:  (YES, E403, E403, E403, E401),
    Target.PRIVATE_OWN:     (YES, YES,  E403, E403, E401),
    Target.PRIVATE_FREE:    (YES, YES,  E403, E403, E401),
    Target.PRIVATE_FOREIGN: (YES, E404, E403, E403, E401),
    Target.UNKNOWN:         (E404, E404, E403, E403, E401),
})
PROGRAM_CREATE = Rule({
    Target.INTO_OWN:        (YES, YES,  E403, E403, E401),
    Target.INTO_NONE:       (YES, YES,  E403, E403, E401),
    Target.INTO_FOREIGN:    (YES, E403, E403, E403, E401),
})
PROGRAM_UPDATE = PROGRAM_CHANGE | PROGRAM_CREATE
PROGRAM_LIST = Rule({
    Target.OWN:             (YES, YES,  E403, E403, E401),
    Target.NO_PROJECT:      (YES, YES,  E403, E403, E401),
    Target.FOREIGN:         (YES, OUT,  E403, E403, E401),
})

# Projects: those who belong to one read it, and its producers work in it. For all others it is not there.
PROJECT_LIST = Rule({
    Target.OWN:             (YES, YES,  YES,  E403, E401),
    Target.FOREIGN:         (YES, OUT,  OUT,  E403, E401),
})
PROJECT_READ = Rule({
    Target.OWN:             (YES, YES,  YES,  E403, E401),
    Target.FOREIGN:         (YES, E404, E404, E403, E401),
    Target.UNKNOWN:         (E404, E404, E404, E403, E401),
})
PROJECT_WORK = Rule({
    Target.OWN:             (YES, YES,  E403, E403, E401),
    Target.FOREIGN:         (YES, E404, E403, E403, E401),
    Target.UNKNOWN:         (E404, E404, E403, E403, E401),
})
PROJECT_CHANGE = Rule({
    Target.OWN:             (YES, E403, E403, E403, E401),
    Target.FOREIGN:         (YES, E403, E403, E403, E401),
    Target.UNKNOWN:         (E404, E403, E403, E403, E401),
})

# What applications in the hands of the public use: published revisions, their data sources, stored values.
LIVE_REVISION = Rule({
    Target.PUBLISHED_OWN:     (YES, YES,  YES,  YES,  YES),
    Target.PUBLISHED_FOREIGN: (YES, YES,  YES,  YES,  YES),
    Target.DRAFT_OWN:         (E404, E404, E404, E404, E404),
    Target.DRAFT_FOREIGN:     (E404, E404, E404, E404, E404),
    Target.UNKNOWN:           (E404, E404, E404, E404, E404),
})
SOURCE_REQUEST = Rule({
    Target.PUBLISHED_OWN:     (YES, YES,  YES,  YES,  E401),
    Target.PUBLISHED_FOREIGN: (YES, E404, E404, YES,  E401),
    Target.DRAFT_OWN:         (YES, YES,  YES,  E403, E401),
    Target.DRAFT_FOREIGN:     (YES, E404, E404, E403, E401),
    Target.UNKNOWN:           (E404, E404, E404, E404, E401),
})
VALUE_READ = Rule({
    Target.STORED_VALUE:    (YES, YES,  YES,  YES,  YES),
    Target.UNKNOWN:         (E404, E404, E404, E404, E404),
})
VALUE_STORE = Rule({
    Target.NEW_VALUE:       (YES, YES,  YES,  YES,  YES),
    Target.STORED_VALUE:    (YES, YES,  YES,  YES,  E409),  # in place of it
    Target.UNKNOWN:         (E404, E404, E404, E404, E404),
})

# Users: their own profile is theirs, their name and rights are the admins', and nobody's role is its own to
# change. `client` tokens are in the hands of the public, so their user changes nothing and makes no tokens.
USER_READ = Rule({
    Target.OWN_PROFILE:     (YES, YES,  YES,  YES,  E401),
    Target.OTHER_USER:      (YES, E403, E403, E403, E401),
    Target.UNKNOWN:         (E404, E403, E403, E403, E401),
})
OWN_USER_CHANGE = Rule({
    Target.OWN_PROFILE:     (YES, YES,  YES,  E403, E401),
    Target.OWN_RIGHTS:      (YES, E403, E403, E403, E401),
    Target.OWN_ROLE:        (E403, E403, E403, E403, E401),
})
USER_CHANGE = OWN_USER_CHANGE | Rule({
    Target.OTHER_USER:      (YES, E403, E403, E403, E401),
    Target.UNKNOWN:         (E404, E403, E403, E403, E401),
})
USER_DELETE = Rule({
    Target.OTHER_USER:      (YES, E403, E403, E403, E401),
    Target.UNKNOWN:         (E404, E403, E403, E403, E401),
})
API_TOKENS = Rule({
    Target.ANYTHING:        (YES, YES,  YES,  E403, E401),
})
API_TOKEN_REVOKE = Rule({
    Target.OWN_API_TOKEN:   (YES, YES,  YES,  E403, E401),
    Target.OTHER_API_TOKEN: (E404, E404, E404, E403, E401),
    Target.UNKNOWN:         (E404, E404, E404, E403, E401),
})

# Statistics: of the own projects, and of programs without one.
STATISTICS = Rule({
    Target.OWN:             (YES, YES,  YES,  E403, E401),
    Target.NO_PROJECT:      (YES, YES,  YES,  E403, E401),
    Target.FOREIGN:         (YES, OUT,  OUT,  E403, E401),
})
STATISTICS_OF = Rule({  # of one program, or of one project; answers to a program
    Target.OWN:             (YES, YES,  YES,  E403, E401),
    Target.NO_PROJECT:      (YES, YES,  YES,  E403, E401),
    Target.FOREIGN:         (YES, E404, E404, E403, E401),
    Target.UNKNOWN:         (E404, E404, E404, E403, E401),
})

ACCOUNT_STATISTICS = Rule({  # of what belongs to no project
    Target.ANYTHING:        (YES, YES,  YES,  E403, E401),
})

# Images: anybody may ask for one. Who publishes may have it made before.
IMAGE_WARM = Rule({
    Target.ANYTHING:        (YES, YES,  E403, E403, E401),
})

# The channel `programs`: what becomes of the programs that the caller may know of.
PROGRAMS_CHANNEL = Rule({
    Target.PUBLIC_OWN:      (YES, YES,  YES,  E403, E401),
    Target.PUBLIC_FREE:     (YES, YES,  YES,  E403, E401),
    Target.PUBLIC_FOREIGN:  (YES, YES,  YES,  E403, E401),
    Target.PRIVATE_OWN:     (YES, YES,  YES,  E403, E401),
    Target.PRIVATE_FREE:    (YES, YES,  YES,  E403, E401),
    Target.PRIVATE_FOREIGN: (YES, OUT,  OUT,  E403, E401),
})
# The channel of a project: all programs that name it, whether the project is there or not.
PROJECT_CHANNEL = Rule({
    Target.OWN:             (YES, YES,  YES,  E403, E401),
    Target.FOREIGN:         (YES, E404, E404, E403, E401),
})
# fmt: on

CLOSED = Rule({})
"""Of no operation: it allows nothing."""

PERMISSIONS: Mapping[str, Rule] = {
    # Status and log-in
    "login": OPEN,
    "getVersion": OPEN,
    "servertime": OPEN,
    "connect": OPEN,
    "ping": ANY_TOKEN,
    # Programs
    "admin/createProgram": PROGRAM_CREATE,
    "getProducerPrograms": PROGRAM_LIST,
    "filterPrograms": PROGRAM_LIST,
    "getProgram": PROGRAM_READ,
    "getLastUpdate": PROGRAM_READ,
    "updateProgram": PROGRAM_UPDATE,
    "admin/deleteProgram": PROGRAM_CHANGE,
    # Program events
    "getProgramEvents": PROGRAM_FOLLOW,
    "filterProgramEvents": PROGRAM_READ,
    "exportProgramEvents": PROGRAM_READ,
    "getProgramEvent": PROGRAM_READ,
    "producer": PROGRAM_CHANGE,
    "importProgramEvents": PROGRAM_CHANGE,
    "deleteAllProgramEvents": PROGRAM_CHANGE,
    "updateProgramEvent": PROGRAM_CHANGE,
    "deleteProgramEvent": PROGRAM_CHANGE,
    # Projects
    "listProjects": PROJECT_LIST,
    "createProject": ADMIN_ONLY,
    "getProject": PROJECT_READ,
    "updateProject": PROJECT_CHANGE,
    "deleteProject": PROJECT_CHANGE,
    "listProjectPrograms": PROJECT_READ,
    "listProjectUsers": PROJECT_WORK,
    # Application revisions
    "getPublishedRevision": PROJECT_READ,
    "getRevisionByStatus": PROJECT_READ,
    "getLatestRevision": PROJECT_READ,
    "getRevisionByVersion": PROJECT_READ,
    "listRevisions": PROJECT_READ,
    "getRevision": PROJECT_READ,
    "createRevision": PROJECT_WORK,
    "createProjectRevision": PROJECT_WORK,
    "updateRevision": PROJECT_WORK,
    "patchRevision": PROJECT_WORK,
    "getLiveRevision": LIVE_REVISION,
    # Applications
    "getApplicationRequest": SOURCE_REQUEST,
    "postApplicationRequest": SOURCE_REQUEST,
    "putApplicationRequest": SOURCE_REQUEST,
    "deleteApplicationRequest": SOURCE_REQUEST,
    "getStoredValue": VALUE_READ,
    "storeValue": VALUE_STORE,
    "deleteStoredValue": PROJECT_WORK,
    # Analytics
    "getAnalyticsSite": PROJECT_WORK,
    "createAnalyticsSite": PROJECT_WORK,
    "completeAnalyticsSite": PROJECT_WORK,
    "getAnalyticsReport": PROJECT_READ,
    "postAnalyticsReport": PROJECT_READ,
    "putAnalyticsReport": PROJECT_READ,
    "patchAnalyticsReport": PROJECT_READ,
    "deleteAnalyticsReport": PROJECT_READ,
    "getAnalyticsSnippet": PROJECT_READ,
    # Audience answers
    "addResponses": PROGRAM_ANSWER,
    "respond": PROGRAM_ANSWER,
    "impression": PROGRAM_ANSWER,
    "createVisitor": OPEN,
    "getResponseReport": STATISTICS_OF,
    "getResponseIntegrity": STATISTICS_OF,
    "getResponseResults": OPEN,
    # Users
    "getCurrentUser": ANY_TOKEN,
    "updateCurrentUser": OWN_USER_CHANGE,
    "listRoles": ANY_TOKEN,
    "listUsers": ADMIN_ONLY,
    "createUser": ADMIN_ONLY,
    "getUser": USER_READ,
    "updateUser": USER_CHANGE,
    "deleteUser": USER_DELETE,
    "createApiToken": API_TOKENS,
    "listApiTokens": API_TOKENS,
    "deleteApiToken": API_TOKEN_REVOKE,
    # Images
    "purgeImages": ADMIN_ONLY,
    "warmImages": IMAGE_WARM,
    # Statistics and administration
    "getDashboard": STATISTICS,
    "admin/getLivePrograms": STATISTICS,
    "filterStatistics": STATISTICS_OF,
    "filterImageStatistics": ACCOUNT_STATISTICS,
    "filterAudit": ADMIN_ONLY,
    "getHealth": ADMIN_ONLY,
}
"""The rule of every operation that both doors have, by its name."""

SUBSCRIPTIONS: Mapping[str, Rule] = {
    "program": PROGRAM_FOLLOW,
    "programs": PROGRAMS_CHANNEL,
    "project:": PROJECT_CHANNEL,
    "storage:": VALUE_READ,
    "responses:": PROGRAM_FOLLOW,
}
"""The rule of what can be followed: a program, and channels by name or by the start of their names."""
