//! The others. Each attack goes on until its process is ended; what the gateway ends is begun again at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

use broker_core::protocol::Deflater;
use broker_core::protocol::frame::{Opcode, encode_masked};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use crate::Outcome;

pub const NAMES: [&str; 15] = [
    "drip",
    "header",
    "garbage",
    "unmasked",
    "fragments",
    "bombs",
    "small bombs",
    "small values",
    "pings",
    "subscribes",
    "recoveries",
    "deep JSON",
    "half-open",
    "slow readers",
    "one address",
];

const FROM: [u8; 4] = [127, 0, 0, 2];
/// Attackers at a time, a thread each.
const THREADS: usize = 16;
const HEAD: &str = "GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// What "one address" tries to have, from as many ports, which its processes share: none may have so many descriptors.
const CONNECTIONS: u16 = 50_000;
const FIRST_PORT: u16 = 10_000;
const PROCESSES_FOR_CONNECTIONS: u16 = 4;

/// How many processes an attack takes.
#[must_use]
pub fn processes(name: &str) -> u16 {
    if name == "one address" {
        PROCESSES_FOR_CONNECTIONS
    } else {
        1
    }
}

/// How long an attack runs before it is measured.
#[must_use]
pub fn warm_up(name: &str) -> Duration {
    Duration::from_millis(if name == "one address" { 8_000 } else { 700 })
}

/// Attacks until the process ends, which is one of the attack's processes.
///
/// # Errors
/// An unknown name.
pub fn run(port: u16, name: &str, process: u16) -> Outcome<()> {
    let strike: fn(u16) -> Outcome<()> = match name {
        "drip" => drip,
        "header" => |port| {
            let mut socket = dial(port, FROM)?;
            socket.write_all(HEAD.as_bytes())?;
            Ok(socket.write_all(&[&b"X: "[..], &vec![b'a'; 1 << 20]].concat())?)
        },
        "garbage" => |port| flood(port, &b"\x73garbage\xff\x00".repeat(6_000)),
        "unmasked" => |port| flood(port, b"\x81\x02{}"),
        "fragments" => |port| {
            let mut piece = text_frame(&vec![b'x'; 60_000]);
            piece[0] = 0x01;
            let mut socket = open(port, FROM, false)?;
            socket.write_all(&piece)?;
            piece[0] = 0x00;
            loop {
                socket.write_all(&piece)?;
            }
        },
        "bombs" => |port| flood(port, &bomb(&vec![b' '; 20 << 20])),
        "small bombs" => |port| flood(port, &bomb(&vec![b' '; 1 << 20])),
        "small values" => |port| {
            let values = "1,".repeat((1 << 19) - 16);
            flood(
                port,
                &bomb(format!(r#"{{"params":[{values}1]}}"#).as_bytes()),
            )
        },
        "pings" => |port| {
            let mut ping = Vec::new();
            encode_masked(Opcode::Ping, b"x", [0; 4], &mut ping);
            flood(port, &ping.repeat(8_000))
        },
        "subscribes" => |port| {
            let call =
                br#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"none"}}"#;
            flood(port, &text_frame(call).repeat(500))
        },
        "recoveries" => {
            |port| {
                let [on, off] = [("subscribe", r#","history":1000"#), ("unsubscribe", "")].map(|(method, more)| {
                let params = format!(r#"{{"programId":"p"{more}}}"#);
                text_frame(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#).as_bytes())
            });
                flood(port, &[on, off].concat().repeat(50))
            }
        }
        "deep JSON" => |port| flood(port, &text_frame("[".repeat(100_000).as_bytes())),
        "half-open" => |port| hold(port, 300, b""),
        "slow readers" => slow_readers,
        "one address" => return crowd(port, process),
        _ => return Err(format!("unknown attack {name:?}").into()),
    };
    for _ in 0..THREADS {
        thread::spawn(move || {
            loop {
                // Being thrown out is how an attack ends.
                let _ = strike(port);
            }
        });
    }
    loop {
        thread::park();
    }
}

/// A connection from one of the loopback addresses.
///
/// # Errors
/// Of the socket.
pub fn dial(port: u16, from: [u8; 4]) -> Outcome<TcpStream> {
    dial_from(port, SocketAddrV4::new(from.into(), 0))
}

fn dial_from(port: u16, from: SocketAddrV4) -> Outcome<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &from)?;
    connect(&socket, &SocketAddrV4::new([127, 0, 0, 1].into(), port))?;
    let socket = TcpStream::from(socket);
    socket.set_write_timeout(Some(Duration::from_secs(5)))?;
    Ok(socket)
}

/// A WebSocket.
///
/// # Errors
/// Of the socket, or a refused handshake.
pub fn open(port: u16, from: [u8; 4], deflate: bool) -> Outcome<TcpStream> {
    let mut socket = dial(port, from)?;
    let extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let extension = if deflate { extension } else { "" };
    socket.write_all(format!("{HEAD}{extension}\r\n").as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 101") {
        Ok(socket)
    } else {
        Err("refused".into())
    }
}

/// The masked frame of a text.
#[must_use]
pub fn text_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_masked(Opcode::Text, text, [0; 4], &mut frame);
    frame
}

/// The compressed frame of a text.
fn bomb(text: &[u8]) -> Vec<u8> {
    let (mut payload, mut frame) = (Vec::new(), Vec::new());
    Deflater::new().compress(text, &mut payload);
    encode_masked(Opcode::Text, &payload, [0; 4], &mut frame);
    frame[0] |= 0x40;
    frame
}

/// Sends the same over and over, and reads what comes so that it can go on.
fn flood(port: u16, bytes: &[u8]) -> Outcome<()> {
    let mut socket = open(port, FROM, true)?;
    let mut reader = socket.try_clone()?;
    let drain = thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while matches!(reader.read(&mut buffer), Ok(1..)) {}
        let _ = reader.shutdown(std::net::Shutdown::Both);
    });
    while socket.write_all(bytes).is_ok() {}
    let _ = drain.join();
    Ok(())
}

/// Many handshakes, a byte at a time.
fn drip(port: u16) -> Outcome<()> {
    let mut sockets = (0..60)
        .map(|_| dial(port, FROM))
        .collect::<Outcome<Vec<_>>>()?;
    for byte in HEAD.bytes() {
        for socket in &mut sockets {
            socket.write_all(&[byte])?;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Holds `count` connections that have sent `bytes`, for a second; then all over again.
fn hold(port: u16, count: usize, bytes: &[u8]) -> Outcome<()> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let mut socket = dial(port, FROM)?;
        // One who is turned away at once cannot be written to.
        let _ = socket.write_all(bytes);
        sockets.push(socket);
    }
    thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// This process's share of the connections: whoever is thrown out comes again, from its own port.
fn crowd(port: u16, process: u16) -> Outcome<()> {
    let share = CONNECTIONS / PROCESSES_FOR_CONNECTIONS;
    let mut sockets: Vec<Option<TcpStream>> = (0..share).map(|_| None).collect();
    loop {
        for (socket, number) in sockets.iter_mut().zip(process * share..) {
            if socket.as_mut().is_some_and(is_there) {
                continue;
            }
            // The port is free only when nobody has it.
            *socket = None;
            let from = SocketAddrV4::new(FROM.into(), FIRST_PORT + number);
            *socket = dial_from(port, from).ok();
            if let Some(socket) = socket {
                let _ = write!(socket, "{HEAD}\r\n");
                socket.set_nonblocking(true)?;
            }
        }
    }
}

/// Whether the other side has not hung up; takes what it has said.
fn is_there(socket: &mut TcpStream) -> bool {
    match socket.read(&mut [0; 512]) {
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// Viewers that ask for everything there is and read a byte a second.
fn slow_readers(port: u16) -> Outcome<()> {
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"p","history":10000}}"#;
    let mut sockets = Vec::new();
    for _ in 0..30 {
        let mut socket = open(port, FROM, false)?;
        socket.write_all(&text_frame(call))?;
        sockets.push(socket);
    }
    for _ in 0..60 {
        thread::sleep(Duration::from_secs(1));
        for socket in &mut sockets {
            socket.read_exact(&mut [0])?;
        }
    }
    Ok(())
}
