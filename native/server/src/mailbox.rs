//! Commands of other threads to an event loop.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ids::ConnId;
use super::lock::Lock;
use super::refusals::Refusal;
use super::sys::Wake;

/// One request to a loop. A request about a connection that is gone is ignored.
#[derive(Debug)]
pub enum Command<C> {
    /// The log with this number has grown or ended.
    Log(u64),
    /// Decide again about a handshake that waits.
    Resume(ConnId),
    /// End a handshake that waits.
    Refuse(ConnId, Refusal),
    /// Tell all clients to reconnect, spread over this many milliseconds.
    Drain(u64),
    /// Report how late the loop is.
    Probe,
    Stop,
    /// A command for the handler.
    Handler(C),
}

/// A loop's queue of commands. Senders wake the loop once, however many commands they add before it reads them.
#[derive(Debug)]
pub struct Mailbox<C> {
    queue: Lock<Vec<Command<C>>>,
    is_woken: AtomicBool,
    is_closed: AtomicBool,
    wake: Wake,
}

impl<C> Mailbox<C> {
    /// # Errors
    /// When the process is out of descriptors.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            queue: Lock::new(Vec::new()),
            is_woken: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            wake: Wake::open()?,
        })
    }

    /// The descriptor that becomes readable.
    pub(super) fn wake(&self) -> &OwnedFd {
        self.wake.fd()
    }

    /// Adds a command; commands of one sender are taken in order. Commands for a loop that has ended are dropped.
    pub fn send(&self, command: Command<C>) {
        {
            let mut queue = self.queue.lock();
            if self.is_closed.load(Ordering::Relaxed) {
                return;
            }
            queue.push(command);
        }
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    /// Closes the mailbox: nothing will take commands any more.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        *queue = Vec::new();
    }

    /// Whether commands are still accepted.
    #[cfg(test)]
    pub(super) fn takes(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether commands wait; the answer may be out of date by a moment.
    pub(super) fn has_news(&self) -> bool {
        self.is_woken.load(Ordering::Relaxed)
    }

    /// Moves all commands into `commands`, which is empty.
    pub fn take(&self, commands: &mut Vec<Command<C>>) {
        // Cleared first: a command that is added after this line wakes the loop again.
        self.is_woken.store(false, Ordering::Release);
        std::mem::swap(&mut *self.queue.lock(), commands);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The system call that wakes the loop stands still, and keeps nobody waiting for the queue.
    #[test]
    fn the_descriptor_is_not_written_under_the_lock() {
        let mailbox = Arc::new(Mailbox::<()>::open().expect("a descriptor"));
        rustix::io::ioctl_fionbio(mailbox.wake(), false).expect("it may block");
        rustix::io::write(mailbox.wake(), &(u64::MAX - 1).to_ne_bytes()).expect("it is full");
        let (told, hears) = mpsc::channel();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (mailbox, told) = (Arc::clone(&mailbox), told.clone());
                thread::spawn(move || {
                    mailbox.send(Command::Probe);
                    let _ = told.send(());
                })
            })
            .collect();
        // The first to come writes and waits; the other has only its command to leave.
        let left = hears.recv_timeout(Duration::from_secs(20));
        mailbox.wake.clear();
        for thread in threads {
            thread.join().expect("does not panic");
        }
        assert_eq!(left, Ok(()), "the lock was held meanwhile");
    }
}
