//! One connection: handshake, subscription, messages.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use _native::protocol::handshake::{self, Answer, Limits};
use _native::protocol::{Decoder, Inflater, Item, Opcode, Role, frame};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use crate::bench_support::{monotonic_ns, number_after};
use crate::options::Options;
use crate::round::Round;

/// The sample key of RFC 6455 section 1.3; one for all, since nothing here guards against caches.
const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];
const MESSAGE_LIMIT: usize = 16 << 20;

/// Where a connection is.
enum State {
    /// The answer's head, as far as it has come.
    Opening(Vec<u8>),
    Subscribing,
    Ready,
}

/// A viewer that follows one program.
pub struct Viewer {
    stream: TcpStream,
    state: State,
    decoder: Decoder,
    subscribe: Option<String>,
    /// Of the newest message; 0 before the first.
    seq: u64,
}

impl Viewer {
    /// Connects and sends the request for a WebSocket.
    ///
    /// # Errors
    /// Of the sockets.
    pub fn open(options: &Options, index: usize) -> Result<Self, Box<dyn Error>> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        if options.sources > 1 {
            bind(&socket, &options.source(index))?;
        }
        connect(&socket, &options.address)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        let mut hello = Vec::new();
        handshake::request(
            &options.host,
            &options.path,
            KEY,
            options.deflate,
            &mut hello,
        );
        stream.write_all(&hello)?;
        Ok(Self {
            stream,
            state: State::Opening(Vec::new()),
            decoder: Decoder::new(Role::Client, MESSAGE_LIMIT, options.deflate),
            subscribe: options.subscribe.clone(),
            seq: 0,
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the handshake, and the subscription if there is one, are done.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Takes what one read gives; false when the server has closed.
    ///
    /// # Errors
    /// A refused handshake or subscription, broken frames, or an answer that cannot be sent at once.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        inflater: &mut Inflater,
        round: &mut Round,
    ) -> Result<bool, Box<dyn Error>> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let State::Opening(head) = &mut self.state else {
            return self.take(&mut buffer[..count], inflater, round);
        };
        head.extend_from_slice(&buffer[..count]);
        let consumed = match handshake::parse_response(head, KEY, &Limits::default())? {
            Answer::Partial => return Ok(true),
            Answer::Refused { status } => return Err(format!("handshake refused: {status}").into()),
            Answer::Open { consumed, .. } => consumed,
        };
        let mut rest = head.split_off(consumed);
        self.begin()?;
        self.take(&mut rest, inflater, round)
    }

    fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(params) = self.subscribe.take() else {
            self.state = State::Ready;
            return Ok(());
        };
        self.state = State::Subscribing;
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{params}}}"#);
        self.send(Opcode::Text, call.as_bytes())
    }

    fn send(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut out = Vec::new();
        frame::encode_masked(opcode, payload, MASK, &mut out);
        Ok(self.stream.write_all(&out)?)
    }

    fn take(
        &mut self,
        bytes: &mut [u8],
        inflater: &mut Inflater,
        round: &mut Round,
    ) -> Result<bool, Box<dyn Error>> {
        let now_ns = monotonic_ns();
        let (mut answer, mut ping, mut is_closed) = (None, None, false);
        let is_subscribing = matches!(self.state, State::Subscribing);
        let seq = &mut self.seq;
        self.decoder.feed(bytes, inflater, &mut |item| {
            match item {
                Item::Text(text) if is_subscribing && !text.contains(r#""method":"#) => {
                    answer = Some(text.to_owned());
                }
                Item::Text(text) => {
                    if let Some(number) = number_after(text, r#""seq":"#) {
                        round.count(*seq, number, number_after(text, r#""sent":"#), now_ns);
                        *seq = number;
                    }
                }
                Item::Ping(payload) => ping = Some(payload.to_vec()),
                Item::Close { .. } => is_closed = true,
                Item::Binary(_) | Item::Pong(_) => {}
            }
            true
        })?;
        if let Some(payload) = ping {
            self.send(Opcode::Pong, &payload)?;
        }
        if let Some(text) = answer {
            if !text.contains(r#""result":"#) {
                return Err(format!("subscribe failed: {text}").into());
            }
            self.state = State::Ready;
        }
        Ok(!is_closed)
    }
}
