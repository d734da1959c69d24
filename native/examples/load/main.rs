//! The load client of the bench: many viewers in one thread, which count, check and time what they get.
//!
//! `load ADDRESS --connections N [--host H] [--path P] [--subscribe PARAMS] [--sources K] [--deflate]`
//!
//! Opens N connections from K loopback addresses and subscribes each with the JSON in PARAMS. When all are ready it
//! prints a line of JSON; from then on it answers commands on standard input, each with one line:
//!
//! * `expect M SECONDS`: answered at once with `{"phase":"expecting"}`, and when each viewer has had M more messages
//!   or the time is over, with what was delivered, lost, doubled, and how late it came;
//! * end of input: ends the program.
//!
//! A message is `{…"seq":N…"sent":T…}`; `seq` must grow by one on each connection, `sent` is the nanosecond of the
//! monotonic clock at which it was published.

#[path = "../bench_support/mod.rs"]
mod bench_support;
mod options;
mod round;
mod viewer;

use std::error::Error;
use std::io::{Read, Write, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use _native::protocol::Inflater;
use bench_support::{cpu_s, monotonic_ns};
use options::Options;
use round::Round;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use serde_json::{Value, json};
use viewer::Viewer;

/// Handshakes under way at a time; more only wait in the server's accept queue.
const HANDSHAKES: usize = 256;
/// One read takes at most so much; a viewer that is behind is read in several turns.
const READ_BYTES: usize = 256 << 10;
const COMMANDS: u64 = u64::MAX;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let mut load = Load::new()?;
    load.connect(&options)?;
    load.serve_commands()
}

struct Load {
    epoll: OwnedFd,
    events: Vec<Event>,
    viewers: Vec<Viewer>,
    ready: usize,
    round: Round,
    inflater: Inflater,
    buffer: Vec<u8>,
}

impl Load {
    fn new() -> Outcome<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(1024),
            viewers: Vec::new(),
            ready: 0,
            round: Round::default(),
            inflater: Inflater::new(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Opens all connections and prints how long it took.
    fn connect(&mut self, options: &Options) -> Outcome<()> {
        let (began_ns, began_cpu_s) = (monotonic_ns(), cpu_s());
        while self.ready < options.connections {
            while self.viewers.len() < options.connections
                && self.viewers.len() - self.ready < HANDSHAKES
            {
                let index = self.viewers.len();
                let viewer = Viewer::open(options, index)?;
                epoll::add(
                    &self.epoll,
                    viewer.as_fd(),
                    EventData::new_u64(index as u64),
                    EventFlags::IN,
                )?;
                self.viewers.push(viewer);
            }
            self.turn(Some(options.timeout))?;
        }
        print(&json!({
            "phase": "ready",
            "connections": self.ready,
            "seconds": seconds_since(began_ns),
            "cpu_s": cpu_s() - began_cpu_s,
        }))
    }

    /// Waits for something to happen and handles it; true when a command waits.
    fn turn(&mut self, timeout: Option<Timespec>) -> Outcome<bool> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        )?;
        if events.is_empty() && timeout.is_some() && self.round.expected == 0 {
            return Err("the server does not answer".into());
        }
        let mut has_command = false;
        for event in &events {
            let data = event.data;
            match usize::try_from(data.u64()) {
                Ok(index) if index < self.viewers.len() => self.read(index)?,
                _ => has_command = true,
            }
        }
        self.events = events;
        Ok(has_command)
    }

    fn read(&mut self, index: usize) -> Outcome<()> {
        let viewer = &mut self.viewers[index];
        let was_ready = viewer.is_ready();
        let goes_on = viewer.read(&mut self.buffer, &mut self.inflater, &mut self.round)?;
        if !goes_on {
            if !was_ready {
                return Err("the server closed a connection before it was ready".into());
            }
            epoll::delete(&self.epoll, viewer.as_fd())?;
            self.round.closed += 1;
        }
        self.ready += usize::from(viewer.is_ready() && !was_ready);
        Ok(())
    }

    fn serve_commands(&mut self) -> Outcome<()> {
        let mut input = stdin().lock();
        epoll::add(
            &self.epoll,
            stdin().as_fd(),
            EventData::new_u64(COMMANDS),
            EventFlags::IN,
        )?;
        let mut pending = String::new();
        loop {
            while !self.turn(None)? {}
            let mut bytes = [0; 8192];
            let count = input.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            pending.push_str(std::str::from_utf8(&bytes[..count])?);
            while let Some((line, rest)) = pending.split_once('\n') {
                let (line, rest) = (line.to_owned(), rest.to_owned());
                self.expect(&line)?;
                pending = rest;
            }
        }
    }

    /// Runs `expect M SECONDS`. Commands that come meanwhile wait.
    fn expect(&mut self, command: &str) -> Outcome<()> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let &["expect", messages, seconds] = &words[..] else {
            return Err(format!("unknown command {command:?}").into());
        };
        let (messages, seconds): (u64, f64) = (messages.parse()?, seconds.parse()?);
        let limit = Duration::try_from_secs_f64(seconds)?;
        let began = Instant::now();
        self.round = Round::new(messages * self.viewers.len() as u64);
        let began_cpu_s = cpu_s();
        print(&json!({"phase": "expecting"}))?;
        // Short naps, because a waiting command would wake the poll at once while the round is on.
        let nap = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        while !self.round.is_complete() && began.elapsed() < limit {
            self.turn(Some(nap))?;
        }
        let mut report = self.round.report();
        report["cpu_s"] = json!(cpu_s() - began_cpu_s);
        self.round = Round::default();
        print(&report)
    }
}

#[expect(clippy::cast_precision_loss, reason = "durations are short")]
fn seconds_since(began_ns: u64) -> f64 {
    (monotonic_ns() - began_ns) as f64 / 1e9
}

fn print(report: &Value) -> Outcome<()> {
    let mut out = stdout().lock();
    writeln!(out, "{report}")?;
    Ok(out.flush()?)
}
