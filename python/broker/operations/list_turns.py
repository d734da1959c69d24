"""Turns of those who read lists: filters, exports, reports and series, in one process.

Such a read may take its query's whole time, and anybody may begin as many as it likes. Without a bound they
hold every connection of the process's pool together, and publishes and log-ins of all accounts wait for one.
So they have half of the pool, in turns by account, and within an account by user, or by address of callers
without a token. A document that is sent as it is read takes a turn for each of its pages.

At the bound they wait; who waits too long, or is one too many, is answered `Unavailable`. A document that has
begun is not: it would break off half-way. There are only as many as requests, and their own time bounds them.
Nobody waits for a second turn while holding one, so the turns cannot block each other.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from broker.concurrency.shares import Asker, Shares
from broker.concurrency.turns import Turns
from broker.domain.callers import caller_of
from broker.domain.users import Principal
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.operations.results import Result, Stream

WAITING = 1_000
"""How many wait at most: of one account 500, of one caller 333 (`Shares`). Each is a request of some kB."""


class ListTurns:
    """The turns of one process. Use from one event loop."""

    def __init__(self, pool: int, wait_s: float) -> None:
        """All turns are free.

        Args:
            pool: connections of the process to the database; of a single one there is no half to spare.
            wait_s: for a turn at most, as one waits for a connection.
        """
        self.most = max(1, pool // 2)
        self._waiting = Shares(WAITING, "too many lists are being read; try again")
        self._turns = Turns(self.most, self._waiting)
        self._wait_s = wait_s

    @asynccontextmanager
    async def held(self, principal: Principal, address: str) -> AsyncIterator[None]:
        """Have a turn. Safe to cancel. Raises Unavailable where too many wait, or it does not come."""
        async with self._turns.held(_asker(principal, address), wait_s=self._wait_s):
            yield

    def paced(self, result: Result, principal: Principal, address: str) -> Result:
        """The result; what is read while it is sent takes a turn for each read."""
        if not isinstance(result, Stream):
            return result
        return replace(result, chunks=self._paced(result.chunks, principal, address))

    def figures(self) -> Iterator[Sample]:
        """How many wait now."""
        yield Sample(catalogue.QUEUE.name, ("lists",), WAITING - self._waiting.free)

    async def _paced(
        self, chunks: AsyncIterator[bytes], principal: Principal, address: str
    ) -> AsyncGenerator[bytes]:
        async with AsyncExitStack() as stack:
            if isinstance(chunks, AsyncGenerator):
                await stack.enter_async_context(aclosing(chunks))
            async with self.held(principal, address):
                chunk = await anext(chunks, None)
            while chunk is not None:
                yield chunk
                async with self._turns.held(_asker(principal, address), is_counted=False):
                    chunk = await anext(chunks, None)


def _asker(principal: Principal, address: str) -> Asker:
    return Asker(principal.account, principal.subject or caller_of(address))
