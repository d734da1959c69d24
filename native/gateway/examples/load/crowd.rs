//! All viewers, in one thread around one epoll.

use std::io::{Write, stdout};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use broker_core::protocol::Inflater;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use serde_json::{Value, json};

use crate::bench_support::{cpu_s, monotonic_ns};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::own_lag::{self, OwnLag};
use crate::round::Round;
use crate::viewer::{Shared, Standing, Viewer};

/// Handshakes under way at a time; more only wait in the server's accept queue.
const HANDSHAKES: usize = 256;
/// One read takes at most so much; a viewer that is behind is read in several turns.
const READ_BYTES: usize = 256 << 10;
/// The close code of a slow consumer.
const SLOW: u16 = 4008;
/// Short, because a waiting command would wake the poll at once while a round is on.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// The viewers and what they have in common.
pub struct Crowd {
    pub(super) epoll: OwnedFd,
    pub(super) viewers: Vec<Viewer>,
    /// What each had last before the connections were cut; empty the first time.
    pub(super) seqs: Vec<u64>,
    pub(super) round: Round,
    pub(super) own_lag: OwnLag,
    options: Options,
    events: Vec<Event>,
    ready: usize,
    inflater: Inflater,
    buffer: Vec<u8>,
}

impl Crowd {
    /// Nobody yet.
    ///
    /// # Errors
    /// Of the system.
    pub fn new(options: Options) -> Outcome<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self {
            own_lag: OwnLag::new(&epoll)?,
            epoll,
            viewers: Vec::new(),
            seqs: Vec::new(),
            round: Round::default(),
            options,
            events: Vec::with_capacity(1024),
            ready: 0,
            inflater: Inflater::new(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Opens all connections and prints how long it took. Each goes on where it was before they were cut.
    ///
    /// # Errors
    /// Of the sockets, and what the server refuses.
    pub fn connect(&mut self) -> Outcome<()> {
        let (began_ns, began_cpu_s) = (monotonic_ns(), cpu_s());
        while self.ready < self.options.connections {
            while self.viewers.len() < self.options.connections
                && self.viewers.len() - self.ready < HANDSHAKES
            {
                let index = self.viewers.len();
                let seq = self.seqs.get(index).copied().unwrap_or(0);
                let viewer = Viewer::open(&self.options, index, seq)?;
                self.follow(&viewer, index)?;
                self.viewers.push(viewer);
            }
            self.turn(Some(self.options.timeout))?;
        }
        print(&json!({
            "phase": "ready",
            "connections": self.ready,
            "seconds": seconds_since(began_ns),
            "cpu_s": cpu_s() - began_cpu_s,
        }))
    }

    pub(super) fn follow(&self, viewer: &Viewer, index: usize) -> Outcome<()> {
        let data = EventData::new_u64(index as u64);
        Ok(epoll::add(
            &self.epoll,
            viewer.as_fd(),
            data,
            EventFlags::IN,
        )?)
    }

    /// Waits for something to happen and handles it; true when a command waits.
    ///
    /// # Errors
    /// Of the sockets, and a server that is silent while connections open.
    pub fn turn(&mut self, timeout: Option<Timespec>) -> Outcome<bool> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let (epoll, room) = (&self.epoll, rustix::buffer::spare_capacity(&mut events));
        self.own_lag.watch(timeout.as_ref(), || {
            epoll::wait(epoll, room, timeout.as_ref()).map(|_| ())
        })?;
        if events.is_empty() && self.ready < self.viewers.len() {
            return Err("the server does not answer".into());
        }
        let mut has_command = false;
        for event in &events {
            let data = event.data;
            match usize::try_from(data.u64()) {
                _ if data.u64() == own_lag::TOKEN => self.own_lag.hear()?,
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
        let standing = viewer.read(&mut Shared {
            options: &self.options,
            buffer: &mut self.buffer,
            inflater: &mut self.inflater,
            round: &mut self.round,
        })?;
        self.ready += usize::from(viewer.is_ready() && !was_ready);
        if let Standing::Closed(code) = standing {
            if !viewer.is_ready() {
                return Err("the server closed a connection before it was ready".into());
            }
            epoll::delete(&self.epoll, viewer.as_fd())?;
            self.round.closed += 1;
            self.round.closed_slow += u64::from(code == Some(SLOW));
        }
        Ok(())
    }

    /// Reads until `is_over` says so or the time has passed.
    ///
    /// # Errors
    /// Those of [`turn`](Self::turn).
    pub fn wait(&mut self, seconds: f64, is_over: impl Fn(&Round) -> bool) -> Outcome<()> {
        let (limit, began) = (Duration::try_from_secs_f64(seconds)?, Instant::now());
        while !is_over(&self.round) && began.elapsed() < limit {
            self.turn(Some(NAP))?;
        }
        Ok(())
    }

    /// Cuts all connections, and remembers where each was.
    ///
    /// # Errors
    /// Of the sockets.
    pub fn cut(&mut self) -> Outcome<()> {
        for viewer in &self.viewers {
            viewer.reset_on_close()?;
        }
        self.seqs = self.viewers.drain(..).map(|viewer| viewer.seq()).collect();
        self.ready = 0;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "durations are short")]
fn seconds_since(began_ns: u64) -> f64 {
    (monotonic_ns() - began_ns) as f64 / 1e9
}

/// Answers with a line of JSON.
///
/// # Errors
/// Of standard output.
pub fn print(report: &Value) -> Outcome<()> {
    let mut out = stdout().lock();
    writeln!(out, "{report}")?;
    Ok(out.flush()?)
}
