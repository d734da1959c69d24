"""The data sources of application revisions, read without the rest of their content."""

from dataclasses import dataclass

import orjson

from broker.storage.database import Repository

# An id wins over a version of the same text.
_SELECT = """
SELECT status = 'published' AS is_published, content -> 'dataSources' AS sources FROM revisions
WHERE account = $1 AND project_id = $2 AND (id = $3 OR version = $3) ORDER BY id = $3 DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class RevisionSources:
    """What `content.dataSources` of one revision is, unchecked, and whether the revision is published."""

    is_published: bool
    sources: object


class DataSources(Repository):
    """The data sources' repository."""

    async def find(self, account: str, project_id: str, version: str) -> RevisionSources | None:
        """The data sources of the revision with this id or version, or None without such a revision."""
        row = await self._database.fetchrow(_SELECT, account, project_id, version)
        if row is None:
            return None
        sources = row["sources"]
        return RevisionSources(row["is_published"], None if sources is None else orjson.loads(sources))
