//! How late the client itself is: how long a message that has arrived waits until it is read.
//!
//! An event descriptor among the sockets is made readable from time to time. The kernel lets ready sockets take turns, so it
//! is read when all that was ready before it has been. What the client waits for a processor is in it too.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::bench_support::monotonic_ns;
use crate::crowd::Outcome;

/// What the descriptor is called among the sockets.
pub const TOKEN: u64 = u64::MAX - 1;
/// Between two looks.
const PAUSE_NS: u64 = 100_000_000;

/// Rings, hears, and remembers how long that took at worst.
pub struct OwnLag {
    bell: OwnedFd,
    rung_ns: u64,
    is_ringing: bool,
    most_ns: u64,
}

impl OwnLag {
    /// # Errors
    /// Of the system.
    pub fn new(epoll: &OwnedFd) -> Outcome<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(epoll, &bell, EventData::new_u64(TOKEN), EventFlags::IN)?;
        Ok(Self {
            bell,
            rung_ns: 0,
            is_ringing: false,
            most_ns: 0,
        })
    }

    /// Makes the descriptor readable, unless it is or was a moment ago.
    ///
    /// # Errors
    /// Of the system.
    pub fn ring(&mut self) -> Outcome<()> {
        let now_ns = monotonic_ns();
        if !self.is_ringing && now_ns - self.rung_ns >= PAUSE_NS {
            (self.rung_ns, self.is_ringing) = (now_ns, true);
            rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// The descriptor's turn has come.
    ///
    /// # Errors
    /// Of the system.
    pub fn hear(&mut self) -> Outcome<()> {
        rustix::io::read(&self.bell, &mut [0; 8])?;
        self.is_ringing = false;
        self.most_ns = self.most_ns.max(monotonic_ns() - self.rung_ns);
        Ok(())
    }

    /// The worst since it was asked last, in microseconds.
    pub fn take_us(&mut self) -> u64 {
        std::mem::take(&mut self.most_ns) / 1_000
    }
}
