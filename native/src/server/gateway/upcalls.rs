//! Questions for the application, in one bounded queue.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use super::super::connection::ConnId;
use super::super::lock::Lock;
use super::super::sys;

/// Questions of clients that may wait at once; more are refused as overload. A million clients that
/// reconnect with tokens fill it in seconds if the application stands still, and 64 K of them are about 50 MB.
const MOST_WAITING: usize = 1 << 16;

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
}

/// The queue; its descriptor is readable while something is in it.
#[derive(Debug)]
pub struct Upcalls {
    queue: Lock<VecDeque<Upcall>>,
    wake: OwnedFd,
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
        if queue.len() >= MOST_WAITING {
            return false;
        }
        self.push(&mut queue, upcall);
        true
    }

    /// Adds a question of our own, of which there is at most one for each log and occasion.
    pub fn tell(&self, upcall: Upcall) {
        self.push(&mut self.queue.lock(), upcall);
    }

    fn push(&self, queue: &mut VecDeque<Upcall>, upcall: Upcall) {
        if queue.is_empty() {
            sys::wake(&self.wake);
        }
        queue.push_back(upcall);
    }

    /// At most `limit` questions, oldest first.
    pub fn take(&self, limit: usize) -> Vec<Upcall> {
        let mut queue = self.queue.lock();
        let count = limit.min(queue.len());
        let taken = queue.drain(..count).collect();
        if queue.is_empty() {
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
}
