//! Questions for the application, in one bounded queue.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use super::super::connection::ConnId;
use super::super::lock::Lock;
use super::super::sys;

/// Questions of clients that may wait at once; more are refused as overload. A million clients that
/// reconnect with tokens fill it in seconds if the application stands still, and 64 K of them are about 50 MB.
const MOST_WAITING: usize = 1 << 16;
/// Bytes of params that may wait at once: as many as the application itself keeps.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// What native code cannot decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upcall {
    /// A handshake waits for its token.
    Authenticate {
        conn: ConnId,
        account: String,
        token: String,
        address: String,
    },
    /// A request.
    Call {
        conn: ConnId,
        ticket: u64,
        account: String,
        /// 0 for an anonymous connection.
        principal: u64,
        address: String,
        method: String,
        /// JSON; empty when absent.
        params: Vec<u8>,
        is_notification: bool,
    },
    /// A log has had no subscriber for the linger time.
    Idle { topic: String },
    /// The rights of these readers of a private log must be looked at again.
    Access { topic: String, readers: Vec<u64> },
    /// Records for this counter wait to be taken.
    Ballots { lane: usize },
}

/// The queue; its descriptor is readable while something is in it.
#[derive(Debug)]
pub struct Upcalls {
    queue: Lock<Queue>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    upcalls: VecDeque<Upcall>,
    /// Of all params in it.
    bytes: usize,
}

impl Upcall {
    fn bytes(&self) -> usize {
        match self {
            Self::Call { params, .. } => params.len(),
            _ => 0,
        }
    }
}

impl Upcalls {
    /// # Errors
    /// When the process is out of descriptors.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            queue: Lock::default(),
            wake: sys::open_wake()?,
        })
    }

    /// The number of the descriptor.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    /// Adds a question of a client; false when too many wait.
    pub fn ask(&self, upcall: Upcall) -> bool {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + upcall.bytes();
        if queue.upcalls.len() >= MOST_WAITING || bytes > MOST_WAITING_BYTES {
            return false;
        }
        self.push(&mut queue, upcall);
        true
    }

    /// Adds a question of our own, of which there is at most one for each log and occasion.
    pub fn tell(&self, upcall: Upcall) {
        self.push(&mut self.queue.lock(), upcall);
    }

    fn push(&self, queue: &mut Queue, upcall: Upcall) {
        if queue.upcalls.is_empty() {
            sys::wake(&self.wake);
        }
        queue.bytes += upcall.bytes();
        queue.upcalls.push_back(upcall);
    }

    /// At most `limit` questions, oldest first.
    pub fn take(&self, limit: usize) -> Vec<Upcall> {
        let mut queue = self.queue.lock();
        let count = limit.min(queue.upcalls.len());
        let taken: Vec<_> = queue.upcalls.drain(..count).collect();
        queue.bytes -= taken.iter().map(Upcall::bytes).sum::<usize>();
        if queue.upcalls.is_empty() {
            sys::clear_wake(&self.wake);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_keeps_order_and_its_bound() {
        let upcalls = Upcalls::open().expect("a descriptor");
        for number in 0..MOST_WAITING {
            assert!(upcalls.ask(Upcall::Idle {
                topic: number.to_string()
            }));
        }
        assert!(!upcalls.ask(Upcall::Idle {
            topic: String::new()
        }));
        assert_eq!(
            upcalls.take(2)[1],
            Upcall::Idle {
                topic: "1".to_owned()
            }
        );
        assert_eq!(upcalls.take(usize::MAX).len(), MOST_WAITING - 2);
        assert!(upcalls.take(1).is_empty());
    }

    #[test]
    fn params_that_wait_are_bounded() {
        let upcalls = Upcalls::open().expect("a descriptor");
        let call = |bytes: usize| Upcall::Call {
            conn: ConnId(0),
            ticket: 0,
            account: String::new(),
            principal: 0,
            address: String::new(),
            method: String::new(),
            params: vec![0; bytes],
            is_notification: false,
        };
        for _ in 0..64 {
            assert!(upcalls.ask(call(1 << 20)));
        }
        assert!(!upcalls.ask(call(1)));
        assert!(upcalls.ask(call(0)));
        upcalls.take(1);
        assert!(upcalls.ask(call(1 << 20)));
    }
}
