//! Upcalls to the application, in one bounded queue.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;

use broker_server::{ConnId, Lock, Wake};

/// Upcalls for clients that may wait at once; more are refused as overload. A million clients that reconnect with
/// tokens fill the queue in seconds if the application is blocked, and 64 K of them are about 50 MB.
const MOST_WAITING: usize = 1 << 16;
/// Bytes of params, methods and tokens that may wait at once: as many as the application itself queues.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// A request that native code cannot decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upcall {
    /// A handshake waits for the check of its token.
    Authenticate {
        conn: ConnId,
        account: String,
        token: String,
        address: String,
    },
    /// A call.
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
    /// The rights of these readers of a private log must be decided again.
    Access { topic: String, readers: Vec<u64> },
    /// Records for this counter wait to be taken.
    Votes { counter: usize },
    /// Responses to `GET /connect` wait to be logged.
    Connects,
}

/// The queue; its descriptor is readable while the queue is not empty.
#[derive(Debug)]
pub struct Upcalls {
    queue: Lock<Queue>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct Queue {
    upcalls: VecDeque<Upcall>,
    /// Bytes that the queued upcalls hold, as `Upcall::bytes` counts them.
    bytes: usize,
}

impl Queue {
    /// Adds an upcall; returns whether the queue was empty before.
    fn push(&mut self, upcall: Upcall) -> bool {
        self.bytes += upcall.bytes();
        self.upcalls.push_back(upcall);
        self.upcalls.len() == 1
    }
}

impl Upcall {
    /// The bytes that the client controls.
    fn bytes(&self) -> usize {
        match self {
            Self::Call { method, params, .. } => method.len() + params.len(),
            Self::Authenticate { token, .. } => token.len(),
            Self::Idle { .. } | Self::Access { .. } | Self::Votes { .. } | Self::Connects => 0,
        }
    }
}

impl Upcalls {
    /// # Errors
    /// When the process is out of descriptors.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            queue: Lock::default(),
            wake: Wake::open()?,
        })
    }

    /// The number of the descriptor.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.wake.fd().as_raw_fd()
    }

    /// Adds an upcall for a client; false when too many wait.
    pub fn ask(&self, upcall: Upcall) -> bool {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + upcall.bytes();
        if queue.upcalls.len() >= MOST_WAITING || bytes > MOST_WAITING_BYTES {
            return false;
        }
        let is_first = queue.push(upcall);
        drop(queue);
        self.wake_for(is_first);
        true
    }

    /// Adds an upcall of our own, of which there is at most one for each log and occasion.
    pub fn tell(&self, upcall: Upcall) {
        let is_first = self.queue.lock().push(upcall);
        self.wake_for(is_first);
    }

    /// Outside the lock, so that no loop waits for another loop's system call.
    fn wake_for(&self, is_first: bool) {
        if is_first {
            self.wake.wake();
        }
    }

    /// At most `limit` upcalls, oldest first.
    pub fn take(&self, limit: usize) -> Vec<Upcall> {
        // Cleared first: an upcall that is added to the empty queue after this line wakes the reader again.
        self.wake.clear();
        let mut queue = self.queue.lock();
        let count = limit.min(queue.upcalls.len());
        let taken: Vec<_> = queue.upcalls.drain(..count).collect();
        queue.bytes -= taken.iter().map(Upcall::bytes).sum::<usize>();
        let has_more = !queue.upcalls.is_empty();
        drop(queue);
        self.wake_for(has_more);
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
    fn what_clients_have_chosen_is_bounded_while_it_waits() {
        let call = |method: usize, params: usize| Upcall::Call {
            conn: ConnId(0),
            ticket: 0,
            account: String::new(),
            principal: 0,
            address: String::new(),
            method: "m".repeat(method),
            params: vec![0; params],
            is_notification: false,
        };
        let handshake = |bytes: usize| Upcall::Authenticate {
            conn: ConnId(0),
            account: String::new(),
            token: "t".repeat(bytes),
            address: String::new(),
        };
        let kinds: [&dyn Fn(usize) -> Upcall; 3] =
            [&|bytes| call(0, bytes), &|bytes| call(bytes, 0), &handshake];
        for build in kinds {
            let upcalls = Upcalls::open().expect("a descriptor");
            for _ in 0..64 {
                assert!(upcalls.ask(build(1 << 20)));
            }
            assert!(!upcalls.ask(build(1)));
            assert!(upcalls.ask(build(0)));
            upcalls.take(1);
            assert!(upcalls.ask(build(1 << 20)));
        }
    }

    /// The system call that wakes the application stands still, and keeps nobody waiting for the queue.
    #[test]
    fn the_descriptor_is_not_written_under_the_lock() {
        let upcalls = std::sync::Arc::new(Upcalls::open().expect("a descriptor"));
        let fd = upcalls.wake.fd();
        rustix::io::ioctl_fionbio(fd, false).expect("it may block");
        rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).expect("its counter is full");
        let (told, hears) = std::sync::mpsc::channel();
        let threads: Vec<_> = (0..2)
            .map(|counter| {
                let (upcalls, told) = (std::sync::Arc::clone(&upcalls), told.clone());
                std::thread::spawn(move || {
                    upcalls.tell(Upcall::Votes { counter });
                    let _ = told.send(());
                })
            })
            .collect();
        // The first to come writes and waits; the other has only its question to leave.
        let left = hears.recv_timeout(std::time::Duration::from_secs(20));
        upcalls.wake.clear();
        for thread in threads {
            thread.join().expect("does not panic");
        }
        assert_eq!(left, Ok(()), "the lock was held meanwhile");
    }

    /// A reader that takes only when the descriptor is readable gets all upcalls.
    #[test]
    fn the_descriptor_tells_of_everything_whoever_asks_meanwhile() {
        const EACH: usize = 5_000;
        let upcalls = std::sync::Arc::new(Upcalls::open().expect("a descriptor"));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let upcalls = std::sync::Arc::clone(&upcalls);
                std::thread::spawn(move || {
                    for counter in 0..EACH {
                        upcalls.tell(Upcall::Votes { counter });
                    }
                })
            })
            .collect();
        let (mut taken, mut ready) = (0, [0u8; 8]);
        while taken < 3 * EACH {
            let mut polled = [rustix::event::PollFd::new(
                upcalls.wake.fd(),
                rustix::event::PollFlags::IN,
            )];
            let second = rustix::event::Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            let count = rustix::event::poll(&mut polled, Some(&second)).expect("a descriptor");
            assert_eq!(count, 1, "{taken} were announced");
            taken += upcalls.take(7).len();
        }
        for thread in threads {
            thread.join().expect("does not panic");
        }
        upcalls.take(1);
        assert!(
            rustix::io::read(upcalls.wake.fd(), &mut ready).is_err(),
            "nothing is left"
        );
    }
}
