//! What an idle connection costs; alone in its process, because it is read off the whole process.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use broker_gateway::{Gateway, Hub, Server};
use broker_server::Config;

const CONNECTIONS: usize = 1_000;

#[test]
fn an_idle_subscribed_connection_costs_under_two_kilobytes() {
    let config = Config {
        loops: 1,
        ..Config::default()
    };
    let server = Server::new(config).expect("a good configuration");
    let hub = Arc::new(Hub::new(Arc::clone(server.shared())).expect("descriptors"));
    hub.set_accounts(
        "localhost",
        "main",
        HashMap::from([("main".to_owned(), None)]),
    );
    hub.open_log("main/program/p", "e", 0, true);
    let port = server
        .start(move |_| Gateway::new(Arc::clone(&hub)))
        .expect("a free port");
    // The first one pays for what all share.
    let mut sockets = Vec::with_capacity(CONNECTIONS + 1);
    sockets.push(connect(port));
    let before = resident_bytes();
    sockets.extend((0..CONNECTIONS).map(|_| connect(port)));
    let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
    assert!(each < 2_048, "{each} bytes a connection");
}

/// A client in its cheapest form: a socket that has been answered twice.
fn connect(port: u16) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let mut request =
        b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .to_vec();
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"p"}}"#;
    broker_core::protocol::frame::encode_masked(
        broker_core::protocol::Opcode::Text,
        call,
        [0; 4],
        &mut request,
    );
    socket.write_all(&request).expect("room");
    let (mut answer, mut buffer) = (Vec::new(), [0; 1_024]);
    while !answer.ends_with(b"\"events\":[]}}") {
        let got = socket.read(&mut buffer).expect("an answer");
        assert!(got > 0, "closed early");
        answer.extend_from_slice(&buffer[..got]);
    }
    socket
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * 4_096)
}
