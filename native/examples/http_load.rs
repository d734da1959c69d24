//! The HTTP client of the bench: connections that are kept, each with one request under way at a time.
//!
//! `http_load ADDRESS` answers commands on standard input, each with one line of JSON; the end of input ends it.
//!
//! * `run FILE CONNECTIONS SECONDS`: FILE holds a JSON array of whole requests as texts. Connection C sends request C
//!   first, then always the one CONNECTIONS further on, again from the start at the end. When the time is over, replies
//!   under way are awaited and the round is told: replies, failures (status 400 and above), seconds, latencies, own CPU.
//!
//! One thread, so that it takes no more than it needs from a machine that runs the server too.

#[path = "bench_support/mod.rs"]
mod bench_support;

use std::error::Error;
use std::io::{BufRead, ErrorKind, Read, Write, stdin, stdout};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use bench_support::{cpu_s, monotonic_ns};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use serde_json::{Value, json};

/// A reply of more than this is not one of the bench's.
const REPLY_BYTES: usize = 1 << 20;
/// A server that says nothing for so long has failed.
const SILENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let address = std::env::args()
        .nth(1)
        .ok_or("usage: http_load ADDRESS < COMMANDS")?;
    let mut load = Load {
        address,
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        connections: Vec::new(),
    };
    for line in stdin().lock().lines() {
        let report = load.run(&line?)?;
        let mut out = stdout().lock();
        writeln!(out, "{report}")?;
        out.flush()?;
    }
    Ok(())
}

struct Load {
    address: String,
    epoll: OwnedFd,
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    next: usize,
    sent_ns: u64,
}

/// What one round gave.
#[derive(Default)]
struct Round {
    latencies_us: Vec<u64>,
    failures: u64,
    first_failure: String,
    body_bytes: usize,
}

impl Load {
    fn run(&mut self, command: &str) -> Outcome<Value> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let &["run", file, connections, seconds] = &words[..] else {
            return Err(format!("unknown command {command:?}").into());
        };
        let requests: Vec<String> = serde_json::from_slice(&std::fs::read(file)?)?;
        if requests.is_empty() {
            return Err("there is nothing to send".into());
        }
        let count: usize = connections.parse()?;
        let limit_ns = std::time::Duration::try_from_secs_f64(seconds.parse()?)?.as_nanos();
        self.open(count)?;
        let (began_ns, began_cpu_s) = (monotonic_ns(), cpu_s());
        let mut round = Round::default();
        for (index, connection) in self.connections[..count].iter_mut().enumerate() {
            connection.next = index;
            connection.send(&requests, count)?;
        }
        let mut under_way = count;
        let mut events: Vec<Event> = Vec::with_capacity(count);
        while under_way > 0 {
            events.clear();
            epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&SILENCE),
            )?;
            if events.is_empty() {
                return Err("the server does not answer".into());
            }
            for event in &events {
                let connection = &mut self.connections[usize::try_from(event.data.u64())?];
                if !connection.read(&mut round)? {
                    continue;
                }
                if u128::from(monotonic_ns() - began_ns) < limit_ns {
                    connection.send(&requests, count)?;
                } else {
                    under_way -= 1;
                }
            }
        }
        Ok(round.report(monotonic_ns() - began_ns, cpu_s() - began_cpu_s))
    }

    fn open(&mut self, count: usize) -> Outcome<()> {
        while self.connections.len() < count {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            let data = EventData::new_u64(self.connections.len() as u64);
            epoll::add(&self.epoll, stream.as_fd(), data, EventFlags::IN)?;
            self.connections.push(Connection {
                stream,
                buffer: Vec::new(),
                next: 0,
                sent_ns: 0,
            });
        }
        Ok(())
    }
}

impl Connection {
    fn send(&mut self, requests: &[String], step: usize) -> Outcome<()> {
        self.sent_ns = monotonic_ns();
        // Blocking: requests are small, and the server has read the one before.
        self.stream
            .write_all(requests[self.next % requests.len()].as_bytes())?;
        self.next += step;
        Ok(())
    }

    /// Reads what has come; true when the reply is complete.
    fn read(&mut self, round: &mut Round) -> Outcome<bool> {
        let mut bytes = [0; 16 << 10];
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(format!("the server hung up; {}", round.first_failure).into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.buffer.extend_from_slice(&bytes[..count]);
        let Some((status, body_bytes)) = parse_reply(&self.buffer)? else {
            return Ok(false);
        };
        round
            .latencies_us
            .push((monotonic_ns() - self.sent_ns) / 1000);
        round.body_bytes = body_bytes;
        if status >= 400 {
            if round.failures == 0 {
                round.first_failure = String::from_utf8_lossy(&self.buffer).into_owned();
            }
            round.failures += 1;
        }
        self.buffer.clear();
        Ok(true)
    }
}

impl Round {
    fn report(mut self, spent_ns: u64, cpu_s: f64) -> Value {
        self.latencies_us.sort_unstable();
        let at = |percent: usize| {
            self.latencies_us
                .get(self.latencies_us.len() * percent / 100)
                .copied()
        };
        json!({
            "replies": self.latencies_us.len(),
            "failures": self.failures,
            "first_failure": self.first_failure,
            "body_bytes": self.body_bytes,
            "microseconds": spent_ns / 1000,
            "p50_us": at(50),
            "p99_us": at(99),
            "cpu_s": cpu_s,
        })
    }
}

/// Status and size of the body once the whole reply is there. It must have a `Content-Length`, or no body.
fn parse_reply(bytes: &[u8]) -> Outcome<Option<(u16, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut reply = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = reply.parse(bytes)? else {
        return Ok(None);
    };
    let length = reply
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body_bytes: usize = match length {
        Some(header) => std::str::from_utf8(header.value)?.parse()?,
        None => 0,
    };
    if body_bytes > REPLY_BYTES {
        return Err("the reply is too large".into());
    }
    let is_whole = bytes.len() >= head_bytes + body_bytes;
    Ok(is_whole.then(|| (reply.code.unwrap_or(0), body_bytes)))
}
