//! The client of the bench that asks: connections, kept from `run` to `run`, each with one request under way at a time.
//!
//! `http_load ADDRESS [UPGRADE]` answers commands on standard input, each with one line of JSON; the end of input ends
//! it. UPGRADE is a file with the request that opens a WebSocket: each connection sends it first, and what follows are
//! messages, JSON-RPC calls whose errors are failures.
//!
//! * `run FILE CONNECTIONS SECONDS`: FILE holds a JSON array of whole requests as texts. Connection C sends request C
//!   first, then always the one CONNECTIONS further on, again from the start at the end. When the time is over, replies
//!   under way are awaited and the round is told: replies, failures (status 400 and above), seconds, latencies, own CPU.
//! * `publish FILE CONNECTIONS COUNT PER_S`: so many requests on new connections, so many a second, or with 0 as fast
//!   as they are answered. One that finds no connection free waits for it; its latency counts from when it was due.
//!
//! Wherever a request has `"sent":0` with 18 spaces, the number becomes the time when it was due, in nanoseconds.
//!
//! One thread, so that it takes no more than it needs from a machine that runs the server too.

#[path = "../bench_support/mod.rs"]
mod bench_support;
mod plan;
mod wire;

use std::error::Error;
use std::io::{BufRead, ErrorKind, Read, Write, stdin, stdout};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use bench_support::{cpu_s, monotonic_ns};
use plan::{Plan, Request};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use serde_json::{Value, json};
use wire::{Reply, Wire};

/// A server that says nothing for so long has failed.
const SILENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .ok_or("usage: http_load ADDRESS [UPGRADE] < COMMANDS")?;
    let upgrade = arguments.next().map(std::fs::read).transpose()?;
    let mut load = Load {
        address,
        upgrade,
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        connections: Vec::new(),
    };
    for line in stdin().lock().lines() {
        let report = load.obey(&line?)?;
        let mut out = stdout().lock();
        writeln!(out, "{report}")?;
        out.flush()?;
    }
    Ok(())
}

struct Load {
    address: String,
    upgrade: Option<Vec<u8>>,
    epoll: OwnedFd,
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    wire: Wire,
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
    fn obey(&mut self, command: &str) -> Outcome<Value> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (file, count, mut plan) = match words[..] {
            ["run", file, connections, seconds] => {
                (file, connections.parse()?, Plan::lasting(seconds.parse()?)?)
            }
            ["publish", file, connections, most, per_s] => {
                // Servers close what has been idle, and WebSockets whose pings were not answered.
                self.connections.clear();
                let plan = Plan::of(most.parse()?, per_s.parse()?);
                (file, connections.parse()?, plan)
            }
            _ => return Err(format!("unknown command {command:?}").into()),
        };
        let texts: Vec<String> = serde_json::from_slice(&std::fs::read(file)?)?;
        if texts.is_empty() {
            return Err("there is nothing to send".into());
        }
        let mut requests: Vec<Request> = texts
            .iter()
            .map(|text| Request::new(text, self.upgrade.is_some()))
            .collect();
        self.open(count)?;
        let (began_ns, began_cpu_s) = (monotonic_ns(), cpu_s());
        plan.begin(began_ns);
        let round = self.run(&mut plan, &mut requests, count)?;
        Ok(round.report(monotonic_ns() - began_ns, cpu_s() - began_cpu_s))
    }

    fn run(&mut self, plan: &mut Plan, requests: &mut [Request], count: usize) -> Outcome<Round> {
        let mut round = Round::default();
        for (index, connection) in self.connections[..count].iter_mut().enumerate() {
            connection.next = index;
        }
        let mut idle: Vec<usize> = (0..count).rev().collect();
        let mut events: Vec<Event> = Vec::with_capacity(count);
        loop {
            while let Some(&index) = idle.last()
                && let Some(due_ns) = plan.take(monotonic_ns())
            {
                idle.pop();
                self.connections[index].send(requests, count, due_ns)?;
            }
            let now_ns = monotonic_ns();
            let wait = (!idle.is_empty())
                .then(|| plan.wait_ns(now_ns))
                .flatten()
                .map(wire::timespec);
            if wait.is_none() && idle.len() == count {
                return Ok(round);
            }
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.epoll, spare, Some(wait.as_ref().unwrap_or(&SILENCE)))?;
            if events.is_empty() && wait.is_none() {
                return Err("the server does not answer".into());
            }
            for event in &events {
                let index = usize::try_from(event.data.u64())?;
                let connection = &mut self.connections[index];
                let Some(is_last) = connection.read(&mut round)? else {
                    continue;
                };
                if is_last {
                    let next = connection.next;
                    self.connections[index] = self.connect(index)?;
                    self.connections[index].next = next;
                }
                let connection = &mut self.connections[index];
                match plan.take(monotonic_ns()) {
                    Some(due_ns) => connection.send(requests, count, due_ns)?,
                    None => idle.push(index),
                }
            }
        }
    }

    fn open(&mut self, count: usize) -> Outcome<()> {
        while self.connections.len() < count {
            let connection = self.connect(self.connections.len())?;
            self.connections.push(connection);
        }
        Ok(())
    }

    fn connect(&self, index: usize) -> Outcome<Connection> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let wire = match &self.upgrade {
            Some(request) => Wire::upgrade(&mut stream, request)?,
            None => Wire::Http(Vec::new()),
        };
        let data = EventData::new_u64(index as u64);
        epoll::add(&self.epoll, stream.as_fd(), data, EventFlags::IN)?;
        Ok(Connection {
            stream,
            wire,
            next: 0,
            sent_ns: 0,
        })
    }
}

impl Connection {
    fn send(&mut self, requests: &mut [Request], step: usize, due_ns: u64) -> Outcome<()> {
        self.sent_ns = due_ns;
        let request = &mut requests[self.next % requests.len()];
        // Blocking: requests are small, and the server has read the one before.
        self.stream.write_all(request.stamped(due_ns))?;
        self.next += step;
        Ok(())
    }

    /// Reads what has come; when the reply is complete, whether it is the connection's last.
    fn read(&mut self, round: &mut Round) -> Outcome<Option<bool>> {
        let mut bytes = [0; 16 << 10];
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(format!("the server hung up; {}", round.first_failure).into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(reply) = self.wire.take(&mut bytes[..count], &mut self.stream)? else {
            return Ok(None);
        };
        let is_last = reply.is_last;
        round.count(reply, self.sent_ns);
        Ok(Some(is_last))
    }
}

impl Round {
    fn count(&mut self, reply: Reply, sent_ns: u64) {
        self.latencies_us.push((monotonic_ns() - sent_ns) / 1000);
        self.body_bytes = reply.body_bytes;
        if let Some(failure) = reply.failure {
            if self.failures == 0 {
                self.first_failure = failure;
            }
            self.failures += 1;
        }
    }

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
