"""Which settings of a PostgreSQL server let it lose commits.

Everything that the broker acknowledges is committed. A server that answers before it has flushed its log, or
a standby that takes over before it has all of that, takes acknowledged events back.
"""

import asyncpg

_SETTINGS = """
SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names') <> '',
    (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup')
"""


async def find_risks(connection: asyncpg.Connection) -> list[str]:
    """One line for each reason why the server may lose what this session commits."""
    fsync, full_pages, commit, has_synchronous, standbys = await connection.fetchrow(_SETTINGS)
    risks = []
    if not fsync:
        risks.append("fsync is off: a crash of its machine loses or damages what was acknowledged")
    if not full_pages:
        risks.append("full_page_writes is off: a crash of its machine may damage what was stored")
    if commit == "off":
        risks.append("synchronous_commit is off: a crash of the server loses what was acknowledged last")
    elif has_synchronous and commit == "local":
        risks.append("synchronous_commit is local: a failover loses what was acknowledged last")
    if standbys and not has_synchronous:
        risks.append(
            "its standbys are asynchronous (synchronous_standby_names is empty):"
            " a failover loses what was acknowledged last"
        )
    return risks
