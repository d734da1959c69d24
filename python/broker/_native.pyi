"""The native WebSocket server (sockets, framing, program logs, native subscribe), tallies of answers, and what is made of pixels.

Threads of its own run the server's event loops; every method here is quick, may be called from any thread, and
releases the interpreter while it holds a lock of the native side. What native code cannot decide comes to
Python as *upcalls*: `upcall_fd` becomes readable and `take` returns them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, final

__all__ = [
    "BUILT_S",
    "DELAY_BOUNDS_US",
    "Entry",
    "Gateways",
    "IMAGE_CRATES",
    "Rates",
    "Server",
    "Tally",
    "Upcall",
    "blur_hash",
    "check_json",
    "pack_answer",
    "pack_impression",
    "pack_session",
    "pass_json",
    "resize_pixels",
    "thumb_hash",
]

BUILT_S: int
"""When the library was built, seconds since 1970-01-01T00:00:00Z."""

IMAGE_CRATES: str
"""Names and versions of the crates that make something of images; with others the results may be others."""

DELAY_BOUNDS_US: tuple[int, ...]
"""Upper bounds of the buckets of `delays` in `Server.stats`, in microseconds."""

Entry: TypeAlias = tuple[int, str, int, str, bytes]
"""(kind, epoch, seq, method, params) as in `broker.owners.protocol.Entry`; kinds 0 to 3 only."""

Upcall: TypeAlias = tuple[Any, ...]
"""One of, by its first element:

* `("authenticate", conn, account, token, address)`: a handshake waits; answer `grant` then `resume`, or `refuse`.
* `("call", conn, ticket, account, principal, address, method, params, is_notification)`: a request for Python.
  `principal` is the id given to `grant`, 0 for an anonymous connection; `params` is raw JSON bytes (`b""` when
  absent); answer exactly once with `reply` or `retry`. Calls of one connection come in the order sent.
* `("idle", topic)`: a log has had no subscriber for the linger time; `close_log` it or let it be.
* `("access", topic, [reader, ...])`: the log became private; `allow` each reader again, or it loses its subscriptions.
* `("votes", counter)`: `take_votes` has something for a counter; told once until it had nothing.
* `("connects",)`: `take_connects` has something; told once until it was called.
"""

@final
class Server:
    """One gateway's native half: listener, event loops, logs."""

    def __new__(
        cls,
        *,
        host: str,
        port: int,
        loops: int = 0,
        send: str = "auto",
        message_limit_bytes: int = 1 << 20,
        ping_s: float = 25.0,
        pong_s: float = 10.0,
        alive_s: float = 1.0,
        handshake_s: float = 10.0,
        message_s: float = 60.0,
        lag_bytes: int = 1 << 20,
        lag_s: float = 15.0,
        connections: int = 1_000_000,
        connections_per_address: int = 0,
        subscriptions: int = 100,
        messages_per_s: float = 100.0,
        messages_burst: int = 1000,
        history_entries: int = 10_000,
        history_s: float = 86_400.0,
        log_bytes: int = 64 << 20,
        recovery_entries: int = 1_000,
        recovery_bytes: int = 1 << 20,
        linger_s: float = 60.0,
        trusted_proxies: list[str] = ...,
        proxy_protocol: list[str] = ...,
        unlimited_addresses: list[str] = ...,
        waiting_bytes: int = 256 << 20,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> Self:
        """Keep the configuration; nothing is opened yet. ValueError names a bad argument."""

    def start(self) -> int:
        """Bind (SO_REUSEPORT), start the loops, return the bound port. OSError when the port cannot be had."""

    def upcall_fd(self) -> int:
        """An eventfd that is readable while `take` has something."""

    def take(self, limit: int) -> list[Upcall]:
        """At most `limit` upcalls, oldest first; clears the eventfd when none is left."""

    # -- accounts and sessions

    def set_accounts(self, public_host: str, default: str, accounts: dict[str, list[str] | None]) -> None:
        """All accounts with their allowed origins (None: any). Others are answered 404 at the handshake."""

    def grant(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> None:
        """Cache what a token stands for. `reader` names a class of callers with equal reading rights (> 0)."""

    def resume(self, conn: int) -> None:
        """Go on with a handshake whose token has been granted; a connection that is gone is ignored."""

    def refuse(self, conn: int, status: int, body: bytes, headers: list[tuple[str, str]] = ...) -> None:
        """End a handshake with an HTTP error."""

    def sign_in(self, conn: int, account: str, token: str) -> bool:
        """Give an open connection the session of a granted token; false when the connection is gone."""

    def replace(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> int:
        """Cache what a token stands for in place of what was granted to the subject, for its connections too.

        What they follow and may no longer read ends. Returns how many there were.
        """

    def revoke(self, account: str, subject: str) -> int:
        """Forget the subject's tokens and make its connections anonymous; returns how many there were."""

    # -- logs

    def open_log(self, topic: str, epoch: str, seq: int, public: bool, message_id: str = "") -> None:
        """Make a log whose next push is `seq + 1` of `epoch`; one that is open is left as it is.

        `message_id` is that of the message at `seq`, empty where it is not known.
        """

    def append(self, topic: str, entries: list[Entry]) -> None:
        """Add entries and wake the loops. A push at or below the head is skipped.

        A gap raises ValueError, and so does another push than the one that has its seq.
        """

    def backfill(self, topic: str, epoch: str, entries: list[Entry]) -> None:
        """Put older pushes of the current epoch before the log's first one; those already there are skipped."""

    def newest_id(self, topic: str) -> str:
        """The id of the newest push, empty where it is not known or there is no such log."""

    def head(self, topic: str) -> tuple[str, int, int] | None:
        """(epoch, seq of the newest push, seq before the oldest one kept), or None without such a log."""

    def link(self, topic: str, channel_topic: str) -> None:
        """From now on each push of `topic` goes to `channel_topic` too, with `channel` in its params."""

    def unlink(self, topic: str, channel_topic: str) -> None:
        """Undo `link`."""

    def close_log(self, topic: str) -> bool:
        """Drop a log without subscribers; false when it has some."""

    def set_public(self, topic: str, public: bool) -> None:
        """Change who may follow. Becoming private ends anonymous subscriptions and asks about the others."""

    def allow(self, topic: str, reader: int, allowed: bool) -> None:
        """Remember whether a class of readers may follow a private log; a refusal ends its subscriptions."""

    # -- requests

    def reply(self, conn: int, ticket: int, result: bytes) -> None:
        """Answer a call with its JSON result."""

    def reply_error(self, conn: int, ticket: int, error: bytes) -> None:
        """Answer a call with a JSON-RPC error object."""

    def retry(self, conn: int, ticket: int) -> None:
        """Run a `subscribe` again natively, now that its log is open."""

    def notify(self, conn: int, message: bytes) -> None:
        """Send one finished JSON-RPC notification to one connection."""

    # -- votes

    def prepare_votes(self, door: str, per_connection: Rates, per_address: Rates, counters: int) -> None:
        """Let `respond` and `impression` be taken natively; before `start`, once.

        Args:
            door: With `/` and the number of a connection it names that, as a visitor and in `per_connection`.
            per_address: By the account, `/` and the caller's IPv4 address or IPv6 network.
            counters: How many; the records of shard `n` go to counter `n` modulo `counters`.
        """

    def open_poll(
        self,
        account: str,
        program_id: str,
        context_id: str,
        measure_name: str,
        *,
        poll: int,
        shards: int,
        key: bytes,
        options: int,
        allow_change: bool,
        projects: list[str],
        open_s: float,
    ) -> None:
        """Take votes of this poll natively for the next `open_s` seconds, from whoever is here; or go on to.

        Args:
            key: The program's, 16 bytes.
            options: How many there are to choose from, 1 to 1,000.
            projects: How a request may name the program's project.

        Raises:
            ValueError: An argument is wrong.
        """

    def close_poll(self, account: str, program_id: str, context_id: str, measure_name: str) -> None:
        """Leave the votes of a poll to Python from now on; those that were taken stay."""

    def take_votes(self, counter: int) -> list[tuple[int, int, bool, bool, bytes]]:
        """(poll, shard, allow_change, whether of answers, records) of at most 4,000 records, in the order they came.

        Empty while what was taken before is not settled, or when nothing waits; then the next is an upcall again.
        """

    def unsettled_votes(self, counter: int) -> int:
        """How many times `settle_votes` will have been called when all that has come by now is settled."""

    def settle_votes(self, counter: int, replies: list[tuple[bool, bytes]]) -> None:
        """Answer the voters of what was taken, by group: (True, a byte a record) or (False, a JSON-RPC error object).

        Raises:
            ValueError: The groups, or their records, are not as many; they stay taken.
        """

    # -- connects

    def answer_connects(
        self,
        path: Path,
        gateways: Gateways,
        *,
        header: str,
        key: str,
        replies: list[tuple[int, bytes, bytes]],
    ) -> None:
        """Answer `GET /connect` from the ingress at a socket file, in the place of who listened there.

        Args:
            header: in which the ingress says `key`, its door and the address of its client.
            replies: status, head (status line and header lines, each with its end) and body of the advice (whose
                body differs each time), for a host without an account, for who is not the ingress, and for what is
                malformed.

        Raises:
            OSError: the file cannot be made.
        """

    def take_connects(self) -> tuple[list[tuple[int, str, str, str, int, int, int]], int]:
        """What was answered since the last time, and how many responses are missing because more were answered.

        Of each: milliseconds since 1970, request id, client's address, host, status, microseconds, bytes of the body.
        """

    def stop_connects(self) -> None:
        """Close the file's connections, and remove it if it is still ours. Idempotent."""

    # -- life

    def set_time(self, now_ms: int) -> None:
        """Go by this time from now on, milliseconds since 1970; until the first call by the machine's."""

    def set_certificate(self, chain: bytes, key: bytes) -> None:
        """Use another certificate for connections that are accepted from now on; both in PEM.

        Raises:
            ValueError: They cannot be used, or the server was started without a certificate.
        """

    def drain(self, over_s: float) -> None:
        """Stop accepting, tell every client to reconnect after a random time up to `over_s`, then close 1012."""

    def stop(self) -> None:
        """Close everything and join the loops. Idempotent."""

    def probe(self) -> None:
        """Ask each event loop how late it takes up what is left for it; `stats` tells, as `loop_lags_us`."""

    def dead_loops(self) -> int:
        """Event loops that a fault of ours has ended; their clients have been cut off."""

    def stats(self) -> dict[str, Any]:
        """Counters since start and gauges now: connections, subscriptions, deliveries, delivered_bytes,
        messages_in, slow_consumers, handshakes, refused, rate_limited (calls of connections that send too much),
        `tls` (TLS handshakes by outcome), votes_native (votes taken without Python), `closes` (how connections ended: our close code, its reason and
        how many; `client` or `lost` for code and reason), `delays` (the buckets, of which the last has no bound, and their sum in
        microseconds: subscribers by how long a notification took to their sockets), `dead_loops`, `loop_lags_us` (of each event loop at the newest `probe`), logs,
        log_bytes, send (the strategy in use), `send_reason` (why that one), draining; `topics` maps topic to subscribers, `topic_deliveries` topic to notifications given to connections
        since its log was opened, `accounts` account to open connections."""

@final
class Gateways:
    """The gateways that clients are sent to, and what was sent to each since it reported its connections."""

    def __new__(cls, *, url: str, public_host: str, default_account: str) -> Self:
        """Nothing is known; clients are sent to `url` then, in which `{account}` and `{node}` may stand."""

    def set(self, gateways: list[tuple[str, str, int, bool]]) -> None:
        """Replace all: id, URL (`{account}` in it is the account's label), connections, draining."""

    def advise(self, account: str, program_id: str | None = None) -> tuple[bytes, str | None]:
        """Send a client to a gateway.

        Returns:
            The JSON of a `Connect`, and the URL of the program's event stream there; None without a gateway.
        """

@final
class Rates:
    """Token buckets by name; from any thread, and a server takes out of them natively too."""

    def __new__(cls, per_s: float, burst: float, most: int) -> Self:
        """Buckets of `burst` tokens that gain `per_s` a second; 0 has no limit. ValueError for what makes no sense.

        Over `most` buckets the one that has not been used for longest is forgotten.
        """

    def take(self, name: str, tokens: float, now_s: float) -> float:
        """Take tokens at a time of the monotonic clock. How many are missing: 0 when they were taken, else none was."""

    def __len__(self) -> int:
        """How many buckets are not forgotten."""

@final
class Tally:
    """What one shard of a poll has counted, in about 15 bytes a voter.

    It is fed *records*, one after another: answers, impressions and sessions as `pack_answer`, `pack_impression` and
    `pack_session` make them. Long inputs are read without the interpreter; calls from several threads take turns.
    """

    impressions: int
    """How often the poll was shown; set it after `load`, for the records do not tell it."""

    def __new__(cls) -> Self:
        """A tally that has counted nothing."""

    def apply(self, records: bytes, *, allow_change: bool) -> tuple[bytes, bytes]:
        """Count a batch of records.

        A voter's first answer counts. A later one counts only with `allow_change`, if it differs, and then instead of
        the earlier. Every impression counts, a session changes no count.

        Returns:
            (outcomes, news). `outcomes` has one byte a record: 1 if it has changed a count, else 0. `news` are the
            records to store: each answer that counts, and the first impression of a visitor or session.

        Raises:
            ValueError: A record is malformed; the message names its offset, and nothing has been counted.
        """

    def load(self, records: bytes) -> None:
        """Take news that were stored, in the order in which `apply` gave them; `impressions` stays as it is.

        Raises:
            ValueError: A record is malformed; the message names its offset, and nothing has been taken.
        """

    def totals(self) -> list[int]:
        """The answers of each option: index 0 up to the highest that was ever chosen, zeros included."""

    @property
    def visitors(self) -> int:
        """To how many visitors the poll was shown."""

    @property
    def sessions(self) -> int:
        """In how many sessions the poll was shown."""

    @property
    def voters(self) -> int:
        """How many visitors have an answer that counts."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that the tally takes."""

def pack_answer(key: bytes, poll: int, visitor: str, indexes: Sequence[int]) -> bytes:
    """The record of an answer. Its last 8 bytes, little-endian, are a hash of the visitor under the program's key.

    Args:
        key: 16 bytes; without it nobody can tell whose hash it is.
        poll: The poll's uid, not negative; a visitor has another hash for each.
        visitor: The visitor's id.
        indexes: The chosen options, 0 to 999, in any order, at least one, none twice.

    Raises:
        ValueError: The key has another length, or no answer has these indexes.
    """

def pack_impression(key: bytes, poll: int, visitor: str) -> bytes:
    """The record of an impression, with another hash than the visitor's answer has. ValueError as in `pack_answer`."""

def pack_session(key: bytes, poll: int, session: str) -> bytes:
    """The record of a session in which the poll was shown. ValueError as in `pack_answer`."""

def check_json(text: bytes, depth: int) -> tuple[str, list[str | int]] | None:
    """The first fault of a JSON text, in one pass over it; None when there is none.

    Args:
        depth: how many arrays and objects may be inside each other.

    Returns:
        What is wrong and where: `malformed` (no JSON; without a place), `repeated` (a name in its object),
        `large integer` (beyond ±2^53) or `too deep`; names of members and indexes of elements, outermost first.
    """

def pass_json(text: bytes, at: int, depth: int) -> int | tuple[str, list[str | int]] | None:
    """Read the JSON value that begins at `at` by the rules of `check_json`.

    Returns:
        Where it ends, or its first fault as `check_json` gives it; None when the text ends before either is sure.
    """

def resize_pixels(
    pixels: bytes, bands: int, size: tuple[int, int], part: tuple[float, float], target: tuple[int, int]
) -> bytes:
    """A picture in another size, by a Lanczos filter of three lobes that is widened for what becomes smaller.

    Args:
        pixels: `(height, width, bands)` uint8, row-major.
        bands: 1 or 3.
        size: width and height of the pixels.
        part: width and height of what is taken of them, from their first corner.
        target: width and height of the result.

    Raises:
        ValueError: there are too few pixels, the part is larger than they are, or a size or the bands are not valid.
    """

def blur_hash(pixels: bytes, size: tuple[int, int], components: tuple[int, int]) -> str:
    """A BlurHash (https://github.com/woltapp/blurhash).

    Args:
        pixels: `(height, width, 4)` uint8 sRGB, row-major; alpha is ignored.
        size: width and height, each 1 to 100.
        components: of the hash, across and down, each 1 to 9.

    Raises:
        ValueError: the pixels do not fit the size, or a number is out of range.
    """

def thumb_hash(pixels: bytes, size: tuple[int, int]) -> bytes:
    """A ThumbHash (https://evanw.github.io/thumbhash).

    Args:
        pixels: `(height, width, 4)` uint8 sRGB and alpha, row-major; colours are not multiplied by alpha.
        size: width and height, each 1 to 100.

    Raises:
        ValueError: the pixels do not fit the size, or a side is out of range.
    """
