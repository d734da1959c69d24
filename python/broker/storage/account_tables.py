"""Which rows of which table belong to an account.

Every table is here or in `SHARED`, which a test compares with the database, so that whoever adds a table
decides what a backup has of it and what goes when an account is deleted.
"""

from dataclasses import dataclass

_OF_ACCOUNT = "t.account = $1"
_OF_PROGRAM = "t.program_uid IN (SELECT uid FROM programs WHERE account = $1)"
_OF_HISTORY = """t.history IN (
    SELECT h.history FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.account = $1)"""
_OF_POLL = "t.poll IN (SELECT uid FROM answer_polls WHERE account = $1)"


@dataclass(frozen=True, slots=True)
class AccountTable:
    """A table with rows of accounts.

    Attributes:
        rows: the condition on its rows `t` that are of the account `$1`.
        is_kept: whether a backup has them.
        kept: the condition on those of them that a backup has.
    """

    name: str
    rows: str = _OF_ACCOUNT
    is_kept: bool = True
    kept: str = "true"


ACCOUNT_TABLES = (
    AccountTable("accounts", "t.name = $1"),
    AccountTable("users"),
    AccountTable("api_tokens"),
    AccountTable("identity_providers"),
    AccountTable("user_identities"),
    AccountTable("projects"),
    AccountTable("storage_usage"),
    AccountTable("anonymous_storage_usage"),
    AccountTable("stored_values", kept="NOT t.superseded"),
    AccountTable("revisions"),
    AccountTable("programs"),
    AccountTable("program_heads", _OF_PROGRAM),
    AccountTable("events", _OF_HISTORY),
    AccountTable("event_changes", _OF_HISTORY),
    AccountTable("answer_keys", _OF_PROGRAM),
    AccountTable("answer_polls"),
    AccountTable("answer_records", _OF_POLL),
    AccountTable("answer_tallies", _OF_POLL),
    AccountTable("vote_minutes", _OF_POLL),
    AccountTable("vote_networks", _OF_POLL),
    AccountTable("visitor_rules"),
    AccountTable("image_rules"),
    AccountTable("analytics_platforms"),
    AccountTable("analytics_sites"),
    AccountTable("idempotency_keys"),
    AccountTable("statistics"),
    AccountTable("audit"),
    # What is worth something for minutes or days, to what runs now.
    AccountTable("program_changes", is_kept=False),
    AccountTable("schedule_marks", is_kept=False),
    AccountTable("analytics_setups", is_kept=False),
    AccountTable("image_purges", is_kept=False),
    AccountTable("staged_imports", is_kept=False),
    AccountTable("revocations", is_kept=False),
    AccountTable("login_failures", is_kept=False),
    AccountTable("producers_seen", is_kept=False),
    AccountTable("rate_buckets", "split_part(t.key, '/', 2) = $1", is_kept=False),
)
"""In an order in which their rows can be inserted."""

SHARED = frozenset(
    {
        "answer_doors",  # what counters answered to doors; they forget it after an hour
        "conductor_lease",
        "former_histories",  # until housekeeping has deleted their rows
        "gateways",
        "image_purge_head",
        "maintenance",
        "owner_slots",
        "placement",
        "restores",
        "schema_migrations",
        "signing_keys",  # they sign for all accounts; whoever had one could be anybody
        "statistics_marks",
        "statistics_writers",
    }
)
"""The tables without rows that belong to one account."""
