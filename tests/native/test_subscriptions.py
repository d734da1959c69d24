"""Native subscriptions: recovery, order, access, slow consumers, compression."""

import json
import socket
import struct
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.native.harness import PROGRAM, push, wait_for

CHANNEL = "main/channel/project:x"


OTHER = {"epoch": "e1", "seq": 2, "id": "x"}


def named(seq, id_):
    """The push `seq` of this id, as the broker writes it."""
    params = {"seq": seq, "epoch": "e1", "id": id_, "metadata": {"id": "y"}}
    return (0, "e1", seq, "event", json.dumps(params, separators=(",", ":")).encode())


def expires_in(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


class TestSubscribe:
    def test_answer_tells_the_position_and_pushes_follow(self, gateway):
        gateway.server.append(PROGRAM, [push(1)])
        with gateway.client() as client:
            assert client.subscribe() == {
                "programId": "final",
                "epoch": "e1",
                "seq": 1,
                "recovered": True,
                "events": [],
            }
            gateway.server.append(PROGRAM, [push(2)])
            assert client.receive() == {
                "jsonrpc": "2.0",
                "method": "event",
                "params": {"seq": 2, "epoch": "e1", "id": "id-2"},
            }

    def test_twice_delivers_once(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            assert client.subscribe()["seq"] == 0
            gateway.server.append(PROGRAM, [push(1)])
            assert client.seqs(1) == [1]
            assert client.quiet()
            assert gateway.server.stats()["topics"] == {PROGRAM: 1}

    def test_what_is_delivered_is_counted_by_topic(self, gateway):
        with gateway.client() as live, gateway.client() as late:
            live.subscribe()
            gateway.server.append(PROGRAM, [push(1), push(2)])
            assert live.seqs(2) == [1, 2]
            late.subscribe(since={"epoch": "e1", "seq": 0})
            gateway.server.append(PROGRAM, [push(3)])
            assert live.seqs(1) == late.seqs(1) == [3]
            wait_for(lambda: gateway.server.stats()["topic_deliveries"] == {PROGRAM: 4})

    def test_connections_are_counted_by_account(self, gateway):
        assert gateway.server.stats()["accounts"] == {}
        with gateway.client(), gateway.client():
            link = socket.create_connection(("127.0.0.1", gateway.port))
            with connect(f"ws://demo.broker.test:{gateway.port}/api/v1/ws", sock=link, proxy=None):
                assert gateway.server.stats()["accounts"] == {"main": 2, "demo": 1}
            wait_for(lambda: gateway.server.stats()["accounts"] == {"main": 2})
        wait_for(lambda: gateway.server.stats()["accounts"] == {})

    def test_unsubscribe_ends_the_pushes_and_is_idempotent(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            assert client.call("unsubscribe", {"programId": "final"}) == {"programId": "final"}
            gateway.server.append(PROGRAM, [push(1)])
            assert client.call("unsubscribe", {"programId": "final"}) == {"programId": "final"}
            assert gateway.server.stats()["subscriptions"] == 0

    def test_unopened_log_is_asked_for_and_retried(self, gateway):
        with gateway.client() as client:
            number = client.send("subscribe", {"programId": "new"})
            _, conn, ticket, account, principal, _, method, params, _ = gateway.upcall()
            assert (account, principal, method, json.loads(params)) == (
                "main",
                0,
                "subscribe",
                {"programId": "new"},
            )
            gateway.server.open_log("main/program/new", "e9", 5, True)
            gateway.server.retry(conn, ticket)
            answer = client.receive()
            assert (answer["id"], answer["result"]["seq"]) == (number, 5)

    def test_retry_without_a_log_is_404(self, gateway):
        with gateway.client() as client:
            client.send("subscribe", {"programId": "new"})
            _, conn, ticket, *_ = gateway.upcall()
            gateway.server.retry(conn, ticket)
            assert client.receive()["error"]["code"] == 404

    def test_unsubscribe_overtakes_a_subscribe_in_preparation(self, gateway):
        with gateway.client() as client:
            client.send("subscribe", {"programId": "new"})
            _, conn, ticket, *_ = gateway.upcall()
            client.call("unsubscribe", {"programId": "new"})
            gateway.server.open_log("main/program/new", "e9", 5, True)
            gateway.server.retry(conn, ticket)
            assert client.receive()["result"]["seq"] == 5
            assert gateway.server.stats()["subscriptions"] == 0

    @pytest.mark.parametrize(
        "params",
        [
            None,
            {},
            {"programId": 1},
            {"programId": "final", "channel": "programs"},
            {"programId": "final", "x": 1},
            {"programId": "final", "since": {"epoch": "e1"}},
            {"channel": "programs", "history": 1},
            ["final"],
        ],
    )
    def test_odd_params_are_left_to_python(self, gateway, params):
        with gateway.client() as client:
            client.send("subscribe", params)
            assert gateway.upcall()[6] == "subscribe"

    def test_subscriptions_are_limited(self, start):
        gateway = start(subscriptions=1)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        gateway.server.open_log("main/program/other", "e1", 0, True)
        with gateway.client() as client:
            client.subscribe()
            error = client.subscribe("other")
            assert (error["code"], error["data"]["error"]) == (429, "slow_down")

    def test_accounts_do_not_meet(self, gateway):
        with gateway.client() as client:
            client.send("subscribe", {"programId": "../demo/program/final"})
            assert gateway.upcall()[0] == "call"


class TestRecovery:
    def test_missed_events_come_first_then_live_ones(self, gateway):
        gateway.server.append(PROGRAM, [push(n) for n in range(1, 6)])
        with gateway.client() as client:
            result = client.subscribe(since={"epoch": "e1", "seq": 2})
            assert [event["seq"] for event in result["events"]] == [3, 4, 5]
            assert (result["seq"], result["recovered"]) == (5, True)
            gateway.server.append(PROGRAM, [push(6)])
            assert client.seqs(1) == [6]

    def test_what_does_not_fit_the_answer_follows_as_pushes(self, start):
        gateway = start(recovery_entries=3)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        gateway.server.append(PROGRAM, [push(n) for n in range(1, 11)])
        with gateway.client() as client:
            result = client.subscribe(since={"epoch": "e1", "seq": 0})
            assert (len(result["events"]), result["seq"]) == (3, 3)
            assert client.seqs(7) == [4, 5, 6, 7, 8, 9, 10]

    def test_bytes_of_the_answer_are_limited_too(self, start):
        gateway = start(recovery_bytes=1000)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        gateway.server.append(PROGRAM, [push(n, pad=400) for n in range(1, 5)])
        with gateway.client() as client:
            assert client.subscribe(history=4)["seq"] == 2
            assert client.seqs(2) == [3, 4]

    def test_other_notifications_carry_their_method(self, gateway):
        changed = b'{"seq":1,"epoch":"e1","id":"a"}'
        gateway.server.append(PROGRAM, [(0, "e1", 1, "eventUpdated", changed)])
        with gateway.client() as client:
            events = client.subscribe(history=1)["events"]
            assert events == [{"method": "eventUpdated", "seq": 1, "epoch": "e1", "id": "a"}]

    def test_history_is_exact_and_asks_for_what_the_log_lacks(self, gateway):
        gateway.server.open_log("main/program/late", "e1", 5, True)
        with gateway.client() as client:
            client.send("subscribe", {"programId": "late", "history": 2})
            _, conn, ticket, *_ = gateway.upcall()
            gateway.server.backfill("main/program/late", "e1", [push(n) for n in range(3, 6)])
            assert gateway.server.head("main/program/late") == ("e1", 5, 2)
            gateway.server.retry(conn, ticket)
            assert [event["seq"] for event in client.receive()["result"]["events"]] == [4, 5]

    def test_lost_position_is_asked_for_and_then_not_recovered(self, gateway):
        gateway.server.append(PROGRAM, [push(1)])
        with gateway.client() as client:
            client.send("subscribe", {"programId": "final", "since": {"epoch": "gone", "seq": 1}})
            _, conn, ticket, *_ = gateway.upcall()
            gateway.server.retry(conn, ticket)
            result = client.receive()["result"]
            assert (result["recovered"], result["seq"], result["events"]) == (False, 1, [])
            gateway.server.append(PROGRAM, [push(2)])
            assert client.seqs(1) == [2]

    def test_gap_raises_and_double_is_skipped(self, gateway):
        gateway.server.append(PROGRAM, [push(1), push(1)])
        with pytest.raises(ValueError, match="2 is next"):
            gateway.server.append(PROGRAM, [push(3)])
        with pytest.raises(ValueError, match="kind"):
            gateway.server.append(PROGRAM, [(4, "e1", 0, "x", b"{}")])
        assert gateway.server.head(PROGRAM) == ("e1", 1, 0)
        assert gateway.server.head("nothing") is None

    def test_cursor_with_another_id_is_lost(self, gateway):
        """Its seq exists, and is another message: the history that it came from is gone."""
        gateway.server.append(PROGRAM, [named(1, "a"), named(2, "b"), named(3, "c")])
        with gateway.client() as client:
            same = client.subscribe(since={"epoch": "e1", "seq": 2, "id": "b"})
            assert (same["recovered"], same["seq"], same["id"], len(same["events"])) == (True, 3, "c", 1)
        with gateway.client() as client:
            number = client.send("subscribe", {"programId": "final", "since": OTHER})
            kind, conn, ticket, *_ = gateway.upcall()
            assert kind == "call"
            gateway.server.retry(conn, ticket)
            answer = client.receive()
            assert answer["id"] == number
            assert (answer["result"]["recovered"], answer["result"]["events"]) == (False, [])

    def test_another_push_of_a_known_seq_raises(self, gateway):
        gateway.server.append(PROGRAM, [named(1, "a"), named(1, "a")])
        with pytest.raises(ValueError, match="seq 1 was another push"):
            gateway.server.append(PROGRAM, [named(1, "b")])

    def test_reset_begins_an_epoch(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            gateway.server.append(
                PROGRAM, [push(1), (2, "e2", 7, "historyReplaced", b'{"seq":7}'), push(8, "e2")]
            )
            assert [client.receive()["method"] for _ in range(3)] == ["event", "historyReplaced", "event"]
        with gateway.client() as client:
            assert client.subscribe(since={"epoch": "e2", "seq": 7})["seq"] == 8

    def test_reset_ahead_in_its_epoch_goes_on_there(self, gateway):
        ahead = (2, "e1", 7, "historyReplaced", b'{"seq":7,"epoch":"e1"}')
        with gateway.client() as client:
            client.subscribe()
            gateway.server.append(PROGRAM, [push(1), ahead, ahead, push(8)])
            assert [client.receive()["method"] for _ in range(3)] == ["event", "historyReplaced", "event"]
            assert gateway.server.head(PROGRAM) == ("e1", 8, 7)
            assert client.quiet()

    def test_gone_ends_the_subscriptions_after_its_notification(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            gateway.server.append(
                PROGRAM, [push(1), (3, "e1", 0, "programDeleted", b'{"programId":"final"}')]
            )
            assert [client.receive()["method"] for _ in range(2)] == ["event", "programDeleted"]
            wait_for(lambda: gateway.server.stats()["subscriptions"] == 0)
            assert gateway.server.stats()["logs"] == 0
            client.send("subscribe", {"programId": "final"})
            assert gateway.upcall()[6] == "subscribe"


class TestChannels:
    def test_linked_channel_shows_the_program_s_notifications(self, gateway):
        gateway.server.open_log(CHANNEL, "", 0, True)
        gateway.server.link(PROGRAM, CHANNEL)
        with gateway.client() as client:
            assert client.call("subscribe", {"channel": "project:x"}) == {"channel": "project:x"}
            gateway.server.append(PROGRAM, [push(1)])
            assert client.receive() == {
                "jsonrpc": "2.0",
                "method": "event",
                "params": {"channel": "project:x", "seq": 1, "epoch": "e1", "id": "id-1"},
            }
            gateway.server.append(PROGRAM, [(3, "e1", 0, "programDeleted", b"{}")])
            assert client.receive()["params"] == {"channel": "project:x"}
            gateway.server.unlink(PROGRAM, CHANNEL)
            gateway.server.open_log(PROGRAM, "e2", 0, True)
            gateway.server.append(PROGRAM, [push(1, "e2")])
            assert client.quiet()
            assert client.call("unsubscribe", {"channel": "project:x"}) == {"channel": "project:x"}


class TestAccess:
    def sign_in(self, gateway, token="t", reader=1, seconds=600.0, subject="ada"):
        gateway.server.grant("main", token, 7, reader, subject, expires_in(seconds))
        return gateway.client(f"?access_token={token}")

    def test_private_log_asks_once_for_each_class_of_readers(self, gateway):
        gateway.server.open_log("main/program/secret", "e1", 0, False)
        with self.sign_in(gateway) as client:
            client.send("subscribe", {"programId": "secret"})
            _, conn, ticket, *_ = gateway.upcall()
            gateway.server.allow("main/program/secret", 1, True)
            gateway.server.retry(conn, ticket)
            assert client.receive()["result"]["seq"] == 0
        with self.sign_in(gateway) as client:
            assert client.subscribe("secret")["seq"] == 0

    def test_retry_of_one_who_may_not_is_401_or_403(self, gateway):
        gateway.server.open_log("main/program/secret", "e1", 0, False)
        gateway.server.allow("main/program/secret", 1, False)
        for manager, code in ((gateway.client(), 401), (self.sign_in(gateway), 403)):
            with manager as client:
                client.send("subscribe", {"programId": "secret"})
                _, conn, ticket, *_ = gateway.upcall()
                gateway.server.retry(conn, ticket)
                assert client.receive()["error"]["code"] == code

    def test_becoming_private_ends_anonymous_subscriptions_and_asks_about_others(self, gateway):
        with (
            gateway.client() as anonymous,
            self.sign_in(gateway) as allowed,
            self.sign_in(gateway, "u", 2) as other,
        ):
            for client in (anonymous, allowed, other):
                client.subscribe()
            gateway.server.set_public(PROGRAM, False)
            assert anonymous.receive() == {
                "jsonrpc": "2.0",
                "method": "unsubscribed",
                "params": {"programId": "final", "reason": "private"},
            }
            readers = set()
            while readers != {1, 2}:
                kind, topic, some = gateway.upcall()
                assert (kind, topic) == ("access", PROGRAM)
                readers.update(some)
            gateway.server.allow(PROGRAM, 1, True)
            gateway.server.allow(PROGRAM, 2, False)
            assert other.receive()["params"]["reason"] == "insufficient_scope"
            gateway.server.append(PROGRAM, [push(1)])
            assert allowed.seqs(1) == [1]
            assert anonymous.quiet()
            assert other.quiet()

    def test_expiring_token_is_told_and_then_the_connection_is_anonymous(self, gateway):
        gateway.server.open_log("main/program/secret", "e1", 0, False)
        gateway.server.allow("main/program/secret", 1, True)
        with self.sign_in(gateway, seconds=0.8) as client:
            client.send("subscribe", {"programId": "secret"})
            client.send("subscribe", {"programId": "final"})
            messages = [client.receive() for _ in range(3)]
            (expiring,) = [m for m in messages if m.get("method") == "tokenExpiring"]
            assert 0 < expiring["params"]["expiresInMs"] <= 800
            assert client.receive()["params"] == {"programId": "secret", "reason": "token_expired"}
            client.send("ask")
            assert gateway.upcall()[4] == 0
            gateway.server.append(PROGRAM, [push(1)])
            assert client.seqs(1) == [1]

    def test_signing_in_again_keeps_the_subscriptions(self, gateway):
        gateway.server.open_log("main/program/secret", "e1", 0, False)
        gateway.server.allow("main/program/secret", 1, True)
        with self.sign_in(gateway, seconds=1) as client:
            client.send("subscribe", {"programId": "secret"})
            client.send("ask")
            conn = gateway.upcall()[1]
            gateway.server.grant("main", "next", 7, 1, "ada", expires_in(600))
            assert gateway.server.sign_in(conn, "main", "next") is True
            assert gateway.server.sign_in(conn, "main", "unknown") is False
            time.sleep(1.3)
            gateway.server.append("main/program/secret", [push(1)])
            wait_for(lambda: gateway.server.stats()["deliveries"] == 1)

    def test_replaced_rights_are_those_of_the_connection_at_once(self, gateway):
        for name, readers in (("secret", [1, 2]), ("other", [1])):
            gateway.server.open_log(f"main/program/{name}", "e1", 0, False)
            for reader in (1, 2):
                gateway.server.allow(f"main/program/{name}", reader, reader in readers)
        with self.sign_in(gateway) as client:
            client.subscribe("secret")
            client.subscribe("other")
            assert gateway.server.replace("main", "t", 7, 2, "ada", expires_in(600)) == 1
            assert client.receive()["params"] == {"programId": "other", "reason": "insufficient_scope"}
            client.send("ask")
            assert gateway.upcall()[4] == 7
            gateway.server.append("main/program/secret", [push(1)])
            assert client.seqs(1) == [1]
            # And it can be revoked as any other.
            assert gateway.server.revoke("main", "ada") == 1
            assert client.receive()["params"] == {"programId": "secret", "reason": "token_revoked"}

    def test_revoked_subject_is_anonymous_at_once(self, gateway):
        gateway.server.open_log("main/program/secret", "e1", 0, False)
        gateway.server.allow("main/program/secret", 1, True)
        with self.sign_in(gateway) as client:
            client.subscribe("secret")
            assert gateway.server.revoke("main", "ada") == 1
            assert client.receive()["params"]["reason"] == "token_revoked"
            assert gateway.server.revoke("main", "ada") == 0


class TestLogs:
    def test_log_with_subscribers_is_not_closed(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            assert gateway.server.close_log(PROGRAM) is False
        wait_for(lambda: gateway.server.stats()["subscriptions"] == 0)
        assert gateway.server.close_log(PROGRAM) is True
        assert gateway.server.close_log(PROGRAM) is False

    def test_idle_log_is_told(self, start):
        gateway = start(linger_s=0.2)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        assert gateway.upcall() == ("idle", PROGRAM)

    def test_open_twice_leaves_the_log(self, gateway):
        gateway.server.append(PROGRAM, [push(1)])
        gateway.server.open_log(PROGRAM, "e7", 9, True)
        assert gateway.server.head(PROGRAM) == ("e1", 1, 0)


def raw_client(gateway, receive_buffer=4096):
    """A client that reads only when told, with a small window."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.connect(("127.0.0.1", gateway.port))
    raw.sendall(
        b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    send_raw(raw, {"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {"programId": "final"}})
    raw.settimeout(10)
    stream = raw.makefile("rb")
    while stream.readline() != b"\r\n":
        pass
    return raw, stream


def send_raw(raw, message):
    payload = json.dumps(message).encode()
    raw.sendall(b"\x81" + bytes([0x80 | len(payload)]) + b"\0\0\0\0" + payload)


def read_frame(stream):
    first, length = stream.read(2)
    if length == 126:
        (length,) = struct.unpack(">H", stream.read(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", stream.read(8))
    return first & 15, stream.read(length)


class TestSlowConsumers:
    def test_one_that_falls_behind_is_closed_and_others_get_everything(self, start):
        gateway = start(lag_bytes=100_000, lag_s=60)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        raw, stream = raw_client(gateway)
        with raw, gateway.client() as quick:
            quick.subscribe()
            wait_for(lambda: gateway.server.stats()["subscriptions"] == 2)
            for n in range(1, 401):
                gateway.server.append(PROGRAM, [push(n, pad=50_000)])
                assert quick.seqs(1) == [n]
            wait_for(lambda: gateway.server.stats()["slow_consumers"] == 1)
            frames = [read_frame(stream)]
            while frames[-1][0] != 8:
                frames.append(read_frame(stream))
            assert frames[-1][1] == struct.pack(">H", 4008) + b"slow_consumer"
            seqs = [json.loads(payload)["params"]["seq"] for _, payload in frames[1:-1]]
            assert seqs == list(range(1, len(seqs) + 1))

    def test_time_without_progress_closes_too(self, start):
        gateway = start(lag_bytes=1 << 30, lag_s=0.5)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        raw, stream = raw_client(gateway)
        with raw:
            wait_for(lambda: gateway.server.stats()["subscriptions"] == 1)
            gateway.server.append(PROGRAM, [push(n, pad=60_000) for n in range(1, 201)])
            wait_for(lambda: gateway.server.stats()["slow_consumers"] == 1)
            assert read_frame(stream)[0] == 1

    def test_recovery_is_not_slow_consumption_while_it_makes_progress(self, start):
        gateway = start(lag_bytes=50_000, lag_s=1.0, recovery_entries=0)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        gateway.server.append(PROGRAM, [push(n, pad=20_000) for n in range(1, 501)])
        raw, stream = raw_client(gateway)
        with raw:
            assert json.loads(read_frame(stream)[1])["result"]["seq"] == 500
            send_raw(
                raw, {"jsonrpc": "2.0", "id": 2, "method": "unsubscribe", "params": {"programId": "final"}}
            )
            send_raw(
                raw,
                {
                    "jsonrpc": "2.0",
                    "id": 3,
                    "method": "subscribe",
                    "params": {"programId": "final", "history": 500},
                },
            )
            assert json.loads(read_frame(stream)[1])["id"] == 2
            assert json.loads(read_frame(stream)[1])["result"]["seq"] == 0
            for n in range(1, 501):
                if n % 50 == 0:
                    time.sleep(0.2)
                assert json.loads(read_frame(stream)[1])["params"]["seq"] == n

    def test_answers_come_between_whole_frames(self, start):
        gateway = start(lag_bytes=1 << 30)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        raw, stream = raw_client(gateway)
        with raw:
            wait_for(lambda: gateway.server.stats()["subscriptions"] == 1)
            gateway.server.append(PROGRAM, [push(n, pad=60_000) for n in range(1, 101)])
            for number in range(2, 12):
                send_raw(raw, {"jsonrpc": "2.0", "id": number, "method": "servertime"})
            wait_for(lambda: gateway.server.stats()["messages_in"] == 11)
            gateway.server.append(PROGRAM, [push(101)])
            ids, seqs = [], []
            while len(seqs) < 101 or len(ids) < 11:
                message = json.loads(read_frame(stream)[1])
                if "id" in message:
                    ids.append(message["id"])
                else:
                    seqs.append(message["params"]["seq"])
            assert (ids, seqs) == (list(range(1, 12)), list(range(1, 102)))

    def test_client_that_does_not_read_its_answers_is_closed(self, start):
        gateway = start(lag_bytes=10_000, messages_per_s=0)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        raw, _ = raw_client(gateway)
        with raw:
            raw.setblocking(False)
            deadline = time.monotonic() + 20
            while gateway.server.stats()["slow_consumers"] == 0 and time.monotonic() < deadline:
                try:
                    send_raw(raw, {"jsonrpc": "2.0", "id": "x" * 60, "method": "servertime"})
                except (BlockingIOError, ConnectionError):
                    time.sleep(0.01)
            assert gateway.server.stats()["slow_consumers"] == 1


class TestDeflate:
    def test_broadcast_reaches_deflating_and_plain_clients_alike(self, gateway):
        with gateway.client(compression="deflate") as deflating, gateway.client() as plain:
            gateway.server.append(PROGRAM, [push(1, pad=2_000)])
            for client in (deflating, plain):
                assert client.subscribe(history=1)["events"][0]["seq"] == 1
            gateway.server.append(PROGRAM, [push(2, pad=2_000), push(3)])
            gateway.server.append(PROGRAM, [push(4, pad=5_000)])
            assert deflating.seqs(3) == plain.seqs(3) == [2, 3, 4]
            assert gateway.server.stats()["delivered_bytes"] < 9_000

    def test_recovery_may_mix_plain_and_deflated_frames(self, start):
        gateway = start(recovery_entries=1)
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        gateway.server.append(PROGRAM, [push(n, pad=500) for n in range(1, 6)])
        with gateway.client(compression="deflate") as client:
            client.subscribe()
            gateway.server.append(PROGRAM, [push(n, pad=500) for n in range(6, 9)])
            assert client.seqs(3) == [6, 7, 8]
            with gateway.client(compression="deflate") as late:
                late.subscribe(since={"epoch": "e1", "seq": 2})
                assert late.seqs(5) == [4, 5, 6, 7, 8]


def test_closing_frame_of_the_client_is_answered(gateway):
    with gateway.client() as client:
        client.socket.close(1000, "bye")
        with pytest.raises(ConnectionClosed) as caught:
            client.receive()
        assert caught.value.rcvd.code == 1000
    wait_for(lambda: gateway.server.stats()["connections"] == 0)
