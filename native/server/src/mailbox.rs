//! What other threads ask of an event loop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connection::ConnId;
use super::gateway::{Session, Settled};
use super::lock::Lock;
use super::sys;

/// One request to a loop. Those about a connection are ignored when it is gone.
#[derive(Debug)]
pub enum Command {
    /// The log with this number has grown or ended.
    Log(u64),
    /// Who may follow the log with this number has changed, or its time to decide is over.
    Access(u64, Undecided),
    Resume(ConnId),
    Refuse(ConnId, Refusal),
    SignIn(ConnId, Arc<Session>),
    /// Make these connections anonymous: their sessions are revoked.
    Revoke(Vec<ConnId>),
    /// Answer a call: its ticket, whether it failed, the JSON.
    Reply(ConnId, u64, Answer, Vec<u8>),
    Retry(ConnId, u64),
    /// Records have been counted, or not.
    Settle(Vec<Settled>),
    /// Send a finished message.
    Notify(ConnId, Vec<u8>),
    /// Send every client away within so many milliseconds.
    Drain(u64),
    /// Say how late the loop is.
    Probe,
    Stop,
}

/// What becomes of the subscribers of a private log whose rights are not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The application is asked about them.
    Asked,
    /// They are waited for.
    Kept,
    /// They follow no longer: the time to decide is over.
    Expelled,
}

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Result,
    Error,
}

/// An HTTP answer that ends a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A loop's queue of commands. Senders wake the loop once, however many commands they leave before it looks.
#[derive(Debug)]
pub struct Mailbox {
    queue: Lock<Vec<Command>>,
    is_woken: AtomicBool,
    is_closed: AtomicBool,
    wake: OwnedFd,
}

impl Mailbox {
    /// # Errors
    /// When the process is out of descriptors.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            queue: Lock::new(Vec::new()),
            is_woken: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            wake: sys::open_wake()?,
        })
    }

    /// The descriptor that becomes readable.
    pub(super) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Leaves a command; commands of one sender are taken in order. Those for a loop that is no more are dropped.
    pub fn send(&self, command: Command) {
        {
            let mut queue = self.queue.lock();
            if self.is_closed.load(Ordering::Relaxed) {
                return;
            }
            queue.push(command);
        }
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            sys::wake(&self.wake);
        }
    }

    /// Nobody will take commands any more.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        *queue = Vec::new();
    }

    /// Whether what is left here may be taken.
    #[cfg(test)]
    pub(super) fn takes(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether commands wait; may be late by a moment.
    pub(super) fn has_news(&self) -> bool {
        self.is_woken.load(Ordering::Relaxed)
    }

    /// Moves all commands into `commands`, which is empty.
    pub(super) fn take(&self, commands: &mut Vec<Command>) {
        // Cleared first: a command that comes after this line wakes the loop again.
        self.is_woken.store(false, Ordering::Release);
        std::mem::swap(&mut *self.queue.lock(), commands);
    }
}
