//! How late the client itself is: how long a message that has arrived waits until it is read.
//!
//! An event descriptor among the sockets is made readable from time to time. The kernel lets ready sockets take turns, so it
//! is read when all that was ready before it has been. Where the descriptor was not ringing, a wait that ends after its
//! time and a turn that is long show that the client had no processor.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::Timespec;

use crate::bench_support::monotonic_ns;
use crate::outcome::Outcome;

/// What the descriptor is called among the sockets.
pub const TOKEN: u64 = u64::MAX - 1;
/// Between two looks.
const PAUSE_NS: u64 = 100_000_000;

/// Rings, hears, and remembers how long that took at worst.
pub struct OwnLag {
    bell: OwnedFd,
    rung_ns: u64,
    is_ringing: bool,
    /// When the last wait for sockets ended.
    waited_ns: u64,
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
            waited_ns: monotonic_ns(),
            most_ns: 0,
        })
    }

    /// Waits for sockets with `wait`, for `timeout` at most, while the descriptor rings or has a moment ago.
    ///
    /// # Errors
    /// Of the system, and those of `wait`.
    pub fn watch(
        &mut self,
        timeout: Option<&Timespec>,
        wait: impl FnOnce() -> rustix::io::Result<()>,
    ) -> Outcome<()> {
        let began_ns = monotonic_ns();
        if !self.is_ringing && began_ns - self.rung_ns >= PAUSE_NS {
            (self.rung_ns, self.is_ringing) = (began_ns, true);
            rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        }
        wait()?;
        let (turned_ns, ended_ns) = (began_ns - self.waited_ns, monotonic_ns());
        let most_ns = timeout.map_or(u64::MAX, nanoseconds);
        let overslept_ns = (ended_ns - began_ns).saturating_sub(most_ns);
        self.waited_ns = ended_ns;
        self.most_ns = self.most_ns.max(turned_ns).max(overslept_ns);
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
        self.waited_ns = monotonic_ns();
        std::mem::take(&mut self.most_ns) / 1_000
    }
}

fn nanoseconds(time: &Timespec) -> u64 {
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}
