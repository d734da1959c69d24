//! One connection: greeting, subscription, messages.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use broker_core::protocol::handshake::{self, Answer, Limits};
use broker_core::protocol::{Decoder, Inflater, Item, Opcode, Role, frame};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use crate::bench_support::{monotonic_ns, number_after};
use crate::event_stream::EventStream;
use crate::lines::{Lines, Piece};
use crate::options::{Options, Protocol};
use crate::round::Round;

/// The sample key of RFC 6455 section 1.3; one for all, since nothing here guards against caches.
const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];
const MESSAGE_LIMIT: usize = 16 << 20;
/// Centrifugo takes several commands in one message, and sends a ping that is an empty object.
const CENTRIFUGO_HELLO: &str = r#"{"id":1,"connect":{}}
{"id":2,"subscribe":{"channel":"bench"}}"#;
const CENTRIFUGO_PING: &str = "{}";
const REDIS_HELLO: &[u8] = b"SUBSCRIBE bench\r\n";
/// The answer to the ping says that the subscription before it stands.
const NATS_HELLO: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB bench 1\r\nPING\r\n";

/// Where a connection is.
enum State {
    /// The answer's head, as far as it has come.
    Opening(Vec<u8>),
    Subscribing,
    Ready,
}

enum Transport {
    WebSocket(Decoder),
    Events(EventStream),
    Lines(Lines),
}

/// What a message asks of its viewer.
enum Next {
    Nothing,
    /// The subscription stands.
    Ready,
    Reply(Reply),
    Fail(String),
}

enum Reply {
    Pong(Vec<u8>),
    Text(&'static str),
    Line(&'static [u8]),
}

/// Tells what everyone shares, and what one read brought.
pub struct Shared<'a> {
    pub options: &'a Options,
    pub buffer: &'a mut [u8],
    pub inflater: &'a mut Inflater,
    pub round: &'a mut Round,
}

/// How a connection stands after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Open,
    /// The server has closed, with this code of a WebSocket.
    Closed(Option<u16>),
}

/// A viewer that follows one program.
pub struct Viewer {
    stream: TcpStream,
    state: State,
    transport: Transport,
    index: usize,
    /// Of the newest message; 0 before the first.
    seq: u64,
}

impl Viewer {
    /// Connects and sends what comes first. `seq` is of the newest message that it had on an earlier connection.
    ///
    /// # Errors
    /// Of the sockets.
    pub fn open(options: &Options, index: usize, seq: u64) -> Result<Self, Box<dyn Error>> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        choose_port_late(&socket);
        bind(&socket, &options.source(index))?;
        connect(&socket, &options.address)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        let (deflate, mut hello) = (options.deflates(index), Vec::new());
        let (state, transport) = match options.protocol {
            Protocol::WebSocket | Protocol::Centrifugo => {
                handshake::request(&options.host, &options.path, KEY, deflate, &mut hello);
                let decoder = Decoder::new(Role::Client, MESSAGE_LIMIT, deflate);
                (State::Opening(Vec::new()), Transport::WebSocket(decoder))
            }
            Protocol::Events => {
                hello.extend_from_slice(options.request(index, seq).as_bytes());
                let transport = Transport::Events(EventStream::default());
                (State::Opening(Vec::new()), transport)
            }
            Protocol::Redis | Protocol::Nats => {
                hello.extend_from_slice(match options.protocol {
                    Protocol::Redis => REDIS_HELLO,
                    _ => NATS_HELLO,
                });
                (State::Subscribing, Transport::Lines(Lines::default()))
            }
        };
        stream.write_all(&hello)?;
        Ok(Self {
            stream,
            state,
            transport,
            index,
            seq,
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Of the newest message; 0 before the first.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether the handshake, and the subscription if there is one, are done.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Makes closing the connection reset it, as a cut line would, and leave its port free.
    ///
    /// # Errors
    /// Of the socket.
    pub fn reset_on_close(&self) -> Result<(), Box<dyn Error>> {
        Ok(sockopt::set_socket_linger(
            &self.stream,
            Some(Duration::ZERO),
        )?)
    }

    /// Takes what one read gives.
    ///
    /// # Errors
    /// A refused handshake or subscription, broken frames, or an answer that cannot be sent at once.
    pub fn read(&mut self, shared: &mut Shared<'_>) -> Result<Standing, Box<dyn Error>> {
        let buffer = std::mem::take(&mut shared.buffer);
        let standing = self.read_into(buffer, shared);
        shared.buffer = buffer;
        standing
    }

    fn read_into(
        &mut self,
        buffer: &mut [u8],
        shared: &mut Shared<'_>,
    ) -> Result<Standing, Box<dyn Error>> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Ok(Standing::Closed(None)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Standing::Open),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(Standing::Closed(None));
            }
            Err(error) => return Err(error.into()),
        };
        let State::Opening(head) = &mut self.state else {
            return self.take(&mut buffer[..count], shared);
        };
        head.extend_from_slice(&buffer[..count]);
        let opened = match self.transport {
            Transport::Events(_) => parse_stream_head(head)?,
            _ => parse_handshake(head)?,
        };
        let Some(consumed) = opened else {
            return Ok(Standing::Open);
        };
        let mut rest = head.split_off(consumed);
        self.begin(shared.options)?;
        self.take(&mut rest, shared)
    }

    fn begin(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        self.state = State::Subscribing;
        match (options.protocol, options.call(self.index, self.seq)) {
            // The request was for it; the stream's first event says that it stands.
            (Protocol::Events, _) => Ok(()),
            (Protocol::Centrifugo, _) => self.send(Opcode::Text, CENTRIFUGO_HELLO.as_bytes()),
            (_, Some(call)) => self.send(Opcode::Text, call.as_bytes()),
            (_, None) => {
                self.state = State::Ready;
                Ok(())
            }
        }
    }

    fn send(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut out = Vec::new();
        frame::encode_masked(opcode, payload, MASK, &mut out);
        Ok(self.stream.write_all(&out)?)
    }

    fn take(
        &mut self,
        bytes: &mut [u8],
        shared: &mut Shared<'_>,
    ) -> Result<Standing, Box<dyn Error>> {
        let mut listener = Listener {
            is_subscribing: matches!(self.state, State::Subscribing),
            seq: self.seq,
            now_ns: monotonic_ns(),
            round: shared.round,
        };
        let (mut asked, mut standing) = (Vec::new(), Standing::Open);
        let mut note = |next| {
            if !matches!(next, Next::Nothing) {
                asked.push(next);
            }
        };
        match &mut self.transport {
            Transport::WebSocket(decoder) => decoder.feed(bytes, shared.inflater, &mut |item| {
                match item {
                    Item::Text(text) if shared.options.protocol == Protocol::Centrifugo => {
                        text.split('\n')
                            .for_each(|reply| note(listener.centrifugo(reply)));
                    }
                    Item::Text(text) => note(listener.json_rpc(text)),
                    Item::Ping(payload) => note(Next::Reply(Reply::Pong(payload.to_vec()))),
                    Item::Close { code, .. } => standing = Standing::Closed(code),
                    Item::Binary(_) | Item::Pong(_) => {}
                }
                true
            })?,
            Transport::Events(stream) => {
                stream.feed(bytes, &mut |event| note(listener.event(event)));
            }
            Transport::Lines(lines) => lines.feed(bytes, &mut |piece| note(listener.piece(&piece))),
        }
        self.seq = listener.seq;
        for next in asked {
            self.obey(next)?;
        }
        Ok(standing)
    }

    fn obey(&mut self, next: Next) -> Result<(), Box<dyn Error>> {
        match next {
            Next::Nothing => Ok(()),
            Next::Ready => {
                self.state = State::Ready;
                Ok(())
            }
            Next::Reply(Reply::Pong(payload)) => self.send(Opcode::Pong, &payload),
            Next::Reply(Reply::Text(text)) => self.send(Opcode::Text, text.as_bytes()),
            Next::Reply(Reply::Line(line)) => Ok(self.stream.write_all(line)?),
            Next::Fail(text) => Err(format!("subscribe failed: {text}").into()),
        }
    }
}

/// Bytes of the head of a server's answer to a handshake; `None` while it is not all there.
fn parse_handshake(head: &[u8]) -> Result<Option<usize>, Box<dyn Error>> {
    match handshake::parse_response(head, KEY, &Limits::default())? {
        Answer::Partial => Ok(None),
        Answer::Refused { status } => Err(format!("handshake refused: {status}").into()),
        Answer::Open { consumed, .. } => Ok(Some(consumed)),
    }
}

/// The same of the answer whose body is an event stream.
fn parse_stream_head(head: &[u8]) -> Result<Option<usize>, Box<dyn Error>> {
    let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    if head.starts_with(b"HTTP/1.1 200 ") {
        Ok(Some(end + 4))
    } else {
        Err(format!("stream refused: {}", String::from_utf8_lossy(head)).into())
    }
}

/// Lets `bind` choose the address only. A port that `bind` chose would be taken from every program on the machine that
/// connects from any address; one that `connect` chooses is taken only towards the same server.
#[expect(
    unsafe_code,
    reason = "rustix has no wrapper for IP_BIND_ADDRESS_NO_PORT"
)]
fn choose_port_late(socket: &OwnedFd) {
    let (on, bytes): (libc::c_int, libc::socklen_t) = (1, 4);
    // SAFETY: the pointer and the length describe `on`, which outlives the call. A failure costs ports only.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            bytes,
        );
    }
}

/// Reads what a viewer is told, in each server's words.
struct Listener<'a> {
    is_subscribing: bool,
    seq: u64,
    now_ns: u64,
    round: &'a mut Round,
}

impl Listener<'_> {
    fn json_rpc(&mut self, text: &str) -> Next {
        if !self.is_subscribing || text.contains(r#""method":"#) {
            self.count(text);
            return Next::Nothing;
        }
        let Some((_, result)) = text.split_once(r#""result":"#) else {
            return Next::Fail(text.to_owned());
        };
        self.is_subscribing = false;
        self.count_recovered(result);
        Next::Ready
    }

    fn centrifugo(&mut self, reply: &str) -> Next {
        if reply == CENTRIFUGO_PING {
            return Next::Reply(Reply::Text(CENTRIFUGO_PING));
        }
        if self.is_subscribing && reply.starts_with(r#"{"id":"#) {
            return match (
                reply.contains(r#""error":"#),
                reply.starts_with(r#"{"id":2"#),
            ) {
                (true, _) => Next::Fail(reply.to_owned()),
                (false, true) => {
                    self.is_subscribing = false;
                    Next::Ready
                }
                (false, false) => Next::Nothing,
            };
        }
        self.count(reply);
        Next::Nothing
    }

    fn event(&mut self, event: &str) -> Next {
        if self.is_subscribing && event.contains("event: subscribed\n") {
            self.round.unrecovered += u64::from(event.contains(r#""recovered":false"#));
            self.is_subscribing = false;
            return Next::Ready;
        }
        self.count(event);
        Next::Nothing
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Next {
        match *piece {
            Piece::Payload(text) => {
                self.count(text);
                Next::Nothing
            }
            Piece::Line("PING") => Next::Reply(Reply::Line(b"PONG\r\n")),
            // Redis counts the subscriptions in its answer; NATS answers the greeting's ping.
            Piece::Line(":1" | "PONG") if self.is_subscribing => {
                self.is_subscribing = false;
                Next::Ready
            }
            Piece::Line(line) if line.starts_with('-') => Next::Fail(line.to_owned()),
            Piece::Line(_) => Next::Nothing,
        }
    }

    fn count(&mut self, text: &str) {
        if let Some(seq) = number_after(text, r#""seq":"#) {
            let sent_ns = number_after(text, r#""sent":"#);
            self.round.count(self.seq, seq, sent_ns, self.now_ns);
            self.seq = seq;
        }
    }

    /// Counts the events in a subscription's answer; how old they are says nothing.
    fn count_recovered(&mut self, result: &str) {
        self.round.unrecovered += u64::from(result.contains(r#""recovered":false"#));
        let Some((_, mut events)) = result.split_once(r#""events":["#) else {
            return;
        };
        while let Some(at) = events.find(r#""seq":"#) {
            events = &events[at..];
            if let Some(seq) = number_after(events, r#""seq":"#) {
                self.round.count(self.seq, seq, None, self.now_ns);
                self.seq = seq;
            }
            events = &events[1..];
        }
    }
}
