"""The native server's life, handshake and requests, through its Python face."""

import json
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from broker._native import Server
from tests.native.harness import PROGRAM, Gateway, push, wait_for


def refusal(gateway: Gateway, **options: Any) -> Any:
    """The HTTP answer to a handshake that is refused."""
    query = options.pop("query", "")
    with pytest.raises(InvalidStatus) as caught, gateway.client(query, **options):
        pass
    return caught.value.response


def test_bad_argument_is_named():
    with pytest.raises(ValueError, match="lag_bytes"):
        Server(host="127.0.0.1", port=0, lag_bytes=0)
    with pytest.raises(ValueError, match="send"):
        Server(host="127.0.0.1", port=0, send="pigeon")
    with pytest.raises(ValueError, match="trusted_proxies"):
        Server(host="127.0.0.1", port=0, trusted_proxies=["proxy"])
    with pytest.raises(ValueError, match="proxy_protocol"):
        Server(host="127.0.0.1", port=0, proxy_protocol=["proxy"])
    with pytest.raises(ValueError, match="unlimited_addresses"):
        Server(host="127.0.0.1", port=0, unlimited_addresses=["stadium"])
    # A log has one bit for each loop.
    with pytest.raises(ValueError, match="loops must be 0 to 64"):
        Server(host="127.0.0.1", port=0, loops=65)
    Server(host="127.0.0.1", port=0, loops=64)
    with pytest.raises(ValueError, match="ping_s"):
        Server(host="127.0.0.1", port=0, ping_s=-1)
    with pytest.raises(ValueError, match="host"):
        Server(host="nowhere", port=0)


def test_port_that_is_taken_is_an_os_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            server.start()


def test_stop_twice_is_fine_and_closes_clients(gateway):
    with gateway.client() as client:
        gateway.server.stop()
        with pytest.raises(ConnectionClosed) as caught:
            client.receive()
        assert caught.value.rcvd.code == 1001
    gateway.server.stop()


@pytest.mark.parametrize("send", ["send", "io_uring", "auto"])
def test_every_strategy_delivers(start, send):
    gateway = start(send=send)
    gateway.server.open_log(PROGRAM, "e1", 0, True)
    with gateway.client() as one, gateway.client() as two:
        one.subscribe()
        two.subscribe()
        gateway.server.append(PROGRAM, [push(1), push(2)])
        assert one.seqs(2) == two.seqs(2) == [1, 2]
    assert gateway.server.stats()["send"] in ("send", "io_uring")


class TestHandshake:
    def test_unknown_path_is_404(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(b"GET /other HTTP/1.1\r\nHost: broker.test\r\n\r\n")
            answer = raw.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"] == "not_found"

    def test_plain_http_on_the_path_is_426(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(b"GET /api/v1/ws HTTP/1.1\r\nHost: broker.test\r\n\r\n")
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 426 ")

    def test_unknown_account_is_404(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(
                b"GET /api/v1/ws HTTP/1.1\r\nHost: nobody.broker.test:1\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                b"Sec-WebSocket-Version: 13\r\n\r\n"
            )
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 404 ")

    def test_request_id_is_echoed_or_made(self, gateway):
        with gateway.client(additional_headers={"X-Request-Id": "abc"}) as client:
            assert client.socket.response.headers["X-Request-Id"] == "abc"
        with gateway.client() as client:
            assert len(client.socket.response.headers["X-Request-Id"]) == 32

    def test_granted_token_needs_no_upcall(self, gateway):
        gateway.server.grant("main", "t&1", 7, 1, "ada", (int(time.time()) + 600) * 1000)
        with gateway.client("?access_token=t%261") as client:
            client.send("getProgram")
            assert gateway.upcall()[4] == 7

    def test_ending_a_session_costs_the_same_however_many_there_are(self, gateway):
        def cost_s(sessions: int) -> float:
            """CPU seconds of ending 400 of so many sessions."""
            for number in range(sessions):
                gateway.server.grant("main", f"t{number}", number, 1, f"s{number}", 1 << 50)
            begin_s = time.thread_time()
            for number in range(400):
                gateway.server.revoke("main", f"s{number}")
            return time.thread_time() - begin_s

        of_few_s = cost_s(2_000)
        assert cost_s(64_000) < 8 * of_few_s

    def test_nobody_keeps_a_session_that_ends_while_all_sign_in(self, gateway):
        import threading

        with ExitStack() as stack:
            clients = [stack.enter_context(gateway.client()) for _ in range(30)]
            conns = []
            for client in clients:
                client.send("getProgram")
                conns.append(gateway.upcall()[1])
            for number in range(20):
                gateway.server.grant("main", "t", number + 1, 1, "ada", 1 << 50)
                start = threading.Barrier(3)

                def sign_in(some: list[int], start: threading.Barrier = start) -> None:
                    start.wait()
                    for conn in some:
                        gateway.server.sign_in(conn, "main", "t")

                threads = [threading.Thread(target=sign_in, args=(conns[half::2],)) for half in (0, 1)]
                for thread in threads:
                    thread.start()
                start.wait()
                gateway.server.revoke("main", "ada")
                for thread in threads:
                    thread.join()
                for client in clients:
                    client.send("getProgram")
                    assert gateway.upcall()[4] == 0

    def test_unknown_token_asks_and_waits(self, gateway):
        import threading

        def answer() -> None:
            kind, conn, account, token, address = gateway.upcall()
            assert (kind, account, token, address) == ("authenticate", "main", "new", "127.0.0.1")
            gateway.server.grant("main", "new", 9, 1, "ada", (int(time.time()) + 600) * 1000)
            gateway.server.resume(conn)

        thread = threading.Thread(target=answer)
        thread.start()
        with gateway.client(additional_headers={"Authorization": "Bearer new"}) as client:
            thread.join()
            client.send("getProgram")
            assert gateway.upcall()[4] == 9

    def test_refused_token_is_answered_with_its_error(self, gateway):
        import threading

        def answer() -> None:
            conn = gateway.upcall()[1]
            gateway.server.refuse(conn, 401, b'{"error":"invalid_token"}', [("WWW-Authenticate", "Bearer")])

        thread = threading.Thread(target=answer)
        thread.start()
        response = refusal(gateway, query="?access_token=bad")
        thread.join()
        assert (response.status_code, response.body) == (401, b'{"error":"invalid_token"}')
        assert response.headers["WWW-Authenticate"] == "Bearer"

    def test_expired_grant_is_asked_for_again_and_resume_without_grant_is_401(self, gateway):
        import threading

        gateway.server.grant("main", "old", 7, 1, "ada", int(time.time() * 1000) - 1_000)
        thread = threading.Thread(target=lambda: gateway.server.resume(gateway.upcall()[1]))
        thread.start()
        assert refusal(gateway, query="?access_token=old").status_code == 401
        thread.join()

    def test_malformed_authorization_is_401(self, gateway):
        response = refusal(gateway, additional_headers={"Authorization": "Basic abc"})
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"

    def test_slow_handshake_ends_with_408(self, start):
        gateway = start(handshake_s=0.3)
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\n")
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 408 ")

    def test_huge_head_is_431(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(b"GET /api/v1/ws HTTP/1.1\r\nX: " + b"x" * 20_000)
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 431 ")

    def test_connections_over_the_limit_are_503(self, start):
        gateway = start(connections=1)
        with gateway.client():
            assert refusal(gateway).status_code == 503

    def test_connections_of_one_address_are_limited_behind_a_trusted_proxy(self, start):
        gateway = start(connections_per_address=1, trusted_proxies=["127.0.0.0/8"])
        with gateway.client(additional_headers={"X-Forwarded-For": "9.9.9.9"}):
            response = refusal(gateway, additional_headers={"X-Forwarded-For": "9.9.9.9"})
            assert response.status_code == 429
            assert "Retry-After" in response.headers
            with gateway.client(additional_headers={"X-Forwarded-For": "8.8.8.8"}) as other:
                assert other.quiet()

    def test_proxy_that_names_nobody_and_an_exempt_address_are_not_limited(self, start):
        for options in ({"trusted_proxies": ["127.0.0.0/8"]}, {"unlimited_addresses": ["127.0.0.0/8"]}):
            gateway = start(connections_per_address=1, **options)
            with gateway.client(), gateway.client() as other:
                assert other.quiet()
        gateway = start(connections_per_address=1)
        with gateway.client():
            assert refusal(gateway).status_code == 429


class TestRequests:
    def test_servertime_echoes_the_request_time(self, gateway):
        with gateway.client() as client:
            result = client.call("servertime", {"requestTime": 5})
            assert result["requestTime"] == 5
            assert abs(result["serverTime"] - time.time() * 1000) < 5_000
            assert "requestTime" not in client.call("servertime")

    def test_other_calls_come_in_order_with_their_params(self, gateway):
        with gateway.client() as client:
            client.send("one", {"a": 1})
            client.send("two")
            client.raw({"jsonrpc": "2.0", "method": "three"})
            calls = [gateway.upcall() for _ in range(3)]
            assert [(call[6], call[7], call[8]) for call in calls] == [
                ("one", b'{"a": 1}', False),
                ("two", b"", False),
                ("three", b"", True),
            ]
            gateway.server.reply_error(calls[1][1], calls[1][2], b'{"code":404,"message":"not_found"}')
            gateway.server.reply(calls[0][1], calls[0][2], b"[1]")
            gateway.server.reply(calls[2][1], calls[2][2], b"null")
            assert client.receive() == {
                "jsonrpc": "2.0",
                "id": 2,
                "error": {"code": 404, "message": "not_found"},
            }
            assert client.receive() == {"jsonrpc": "2.0", "id": 1, "result": [1]}
            assert client.quiet()

    def test_batch_is_answered_when_its_last_answer_is_in(self, gateway):
        with gateway.client() as client:
            client.raw(
                [
                    {"jsonrpc": "2.0", "id": "a", "method": "servertime"},
                    {"jsonrpc": "2.0", "id": "b", "method": "ask"},
                    {"jsonrpc": "2.0", "method": "tell"},
                    {"no": "request"},
                ]
            )
            ask, tell = gateway.upcall(), gateway.upcall()
            gateway.server.reply(ask[1], ask[2], b"1")
            assert client.quiet()
            gateway.server.reply(tell[1], tell[2], b"2")
            answers = {answer["id"]: answer for answer in client.receive()}
            assert set(answers) == {"a", "b", None}
            assert answers["b"]["result"] == 1
            assert answers[None]["error"]["code"] == -32600

    def test_batch_of_notifications_gets_nothing(self, gateway):
        with gateway.client() as client:
            client.raw([{"jsonrpc": "2.0", "method": "servertime"}])
            assert client.quiet()

    def test_text_that_is_no_json_is_a_parse_error(self, gateway):
        with gateway.client() as client:
            client.raw("{")
            assert client.receive()["error"]["code"] == -32700

    def test_binary_message_closes_1003_and_large_one_1009(self, start):
        gateway = start(message_limit_bytes=1000)
        for message, code in ((b"x", 1003), ("x" * 1001, 1009)):
            with gateway.client() as client:
                client.socket.send(message)
                with pytest.raises(ConnectionClosed) as caught:
                    client.receive()
                assert caught.value.rcvd.code == code

    def test_message_rate_is_limited_in_order_and_a_flood_is_closed(self, start):
        gateway = start(messages_per_s=0.001, messages_burst=3)
        with gateway.client() as client:
            for _ in range(31):
                client.send("servertime")
            answers = [client.receive() for _ in range(30)]
            assert [answer["id"] for answer in answers] == list(range(1, 31))
            assert [answer for answer in answers[:3] if "result" not in answer] == []
            assert [answer for answer in answers[3:] if answer["error"]["code"] != 429] == []
            assert answers[3]["error"]["data"]["error"] == "slow_down"
            with pytest.raises(ConnectionClosed) as caught:
                client.receive()
            assert caught.value.rcvd.code == 1008

    def test_unanswered_calls_stop_the_reading(self, start):
        gateway = start(messages_per_s=0)
        with gateway.client() as client:
            for _ in range(2_000):
                client.send("ask", {"pad": "x" * 1000})
            wait_for(lambda: gateway.server.stats()["messages_in"] >= 256)
            time.sleep(0.2)
            assert gateway.server.stats()["messages_in"] < 600
            answered = 0
            while answered < 2_000:
                calls = gateway.server.take(100)
                for call in calls:
                    gateway.server.reply(call[1], call[2], b"1")
                answered += len(calls)
            for _ in range(2_000):
                client.receive()

    def test_notify_reaches_its_connection(self, gateway):
        with gateway.client() as client:
            client.send("ask")
            conn = gateway.upcall()[1]
            gateway.server.notify(conn, b'{"jsonrpc":"2.0","method":"hello","params":{}}')
            assert client.receive()["method"] == "hello"

    def test_answers_to_a_gone_connection_are_ignored(self, gateway):
        with gateway.client() as client:
            client.send("ask")
            _, conn, ticket, *_ = gateway.upcall()
        wait_for(lambda: gateway.server.stats()["connections"] == 0)
        gateway.server.reply(conn, ticket, b"1")
        gateway.server.retry(conn, ticket)
        gateway.server.notify(2**64 - 1, b"{}")
        assert gateway.server.sign_in(conn, "main", "t") is False


class TestPings:
    def test_client_that_answers_stays(self, start):
        gateway = start(ping_s=0.2, pong_s=1.0)
        with gateway.client() as client:
            time.sleep(2.5)
            assert client.quiet()

    def test_client_that_does_not_answer_is_dropped(self, start):
        gateway = start(ping_s=0.2, pong_s=0.2)
        with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
            raw.sendall(
                b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert raw.makefile("rb").read().endswith(b"\x89\x00\x88\x09\x03\xf3no pong")
        wait_for(lambda: gateway.server.stats()["connections"] == 0)


class TestDrain:
    def test_clients_are_told_and_closed_and_nobody_new_comes(self, gateway):
        with gateway.client() as client:
            client.subscribe()
            gateway.server.drain(0.3)
            message = client.receive()
            assert message["method"] == "reconnect"
            assert 0 <= message["params"]["afterMs"] <= 300
            with pytest.raises(ConnectionClosed) as caught:
                client.receive()
            assert caught.value.rcvd.code == 1012
            with pytest.raises(ConnectionRefusedError), gateway.client():
                pass
        assert gateway.server.stats()["draining"] is True

    def test_answers_in_flight_are_finished(self, gateway):
        with gateway.client() as client:
            client.send("ask")
            _, conn, ticket, *_ = gateway.upcall()
            gateway.server.drain(0)
            assert client.receive()["method"] == "reconnect"
            time.sleep(0.3)
            gateway.server.reply(conn, ticket, b"1")
            assert client.receive()["result"] == 1
            with pytest.raises(ConnectionClosed) as caught:
                client.receive()
            assert caught.value.rcvd.code == 1012
