"""Case-insensitive search that does not depend on the database's locale."""

from collections.abc import Sequence

import orjson

from broker.storage.conditions import Conditions
from broker.storage.database import Database, Repository

# Locale-free or ICU collations that fold the case of every script, the best first. A server has at least
# one of them unless it is older than version 17 and was built without ICU on a system without C.UTF-8.
_COLLATIONS = ("pg_unicode_fast", "pg_c_utf8", "und-x-icu", "C.utf8", "C.UTF-8")
_FIND = "SELECT collname FROM pg_collation WHERE collname = ANY($1) AND collencoding IN (-1, 6)"  # 6 is UTF-8


class TextSearch(Repository):
    """Makes the SQL conditions of a search; asks the server once which collations it has."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._collate: str | None = None

    async def add(
        self, where: Conditions, columns: Sequence[str], text: str | None, *, in_json: Sequence[str] = ()
    ) -> None:
        """Add that one of the columns contains the text in any case, if there is one.

        Args:
            in_json: columns with compact JSON, where it may be the JSON itself or stand in a string of it.
        """
        if not text:
            return
        if self._collate is None:
            self._collate = await self._find()
        escaped = orjson.dumps(text)[1:-1].decode()
        wanted = [(text, [*columns, *in_json]), (escaped, in_json if escaped != text else [])]
        places = [(column, where.parameter(needle)) for needle, among in wanted for column in among]
        where.add_any(
            f"position(lower({needle}::text {self._collate}) IN lower({column}::text {self._collate})) > 0"
            for column, needle in places
        )

    async def _find(self) -> str:
        found = {row["collname"] for row in await self._database.fetch(_FIND, list(_COLLATIONS))}
        return next((f'COLLATE "{name}"' for name in _COLLATIONS if name in found), "")
