"""Requests of applications' data sources, reached as `client.data_sources`."""

from collections.abc import Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Call, Group
from broker.client.models import SourceReply
from broker.client.retry import Safety


class DataSources(Group):
    """Data sources, which revisions of applications name."""

    async def request(
        self,
        project_id: str,
        version: str,
        data_source_id: str,
        *,
        method: str = "GET",
        parameters: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> SourceReply:
        """Have the broker send a request of a revision's data source; what is given overrides its defaults.

        Only a GET is repeated when its outcome is unknown.

        Raises:
            ApiError: the broker's refusal, or an upstream's status of 400 or more; `status` is that one.
        """
        call = Call(
            method,
            query.path("projects", project_id, "application", "requests", version, data_source_id),
            bytes,
            query=parameters or {},
            body=body,
            headers=headers or {},
            own_safety=Safety.REPEATABLE if method == "GET" else Safety.ONCE,
            is_forwarded=True,
        )
        async with self._engine.stream(call) as reply:
            content = await reply.aread()
        return SourceReply(reply.status_code, reply.headers.get("Content-Type", ""), content)
