//! Ways to send one span to many sockets.

use std::io;

use io_uring::{IoUring, opcode, types};

use super::config::SendChoice;
use super::topics::Live;

/// Sends the same bytes to many sockets without waiting for any of them.
///
/// `results` becomes one number for each target in order: the bytes taken, or an error number negated
/// (`EAGAIN` when the socket is full).
pub(super) trait Sender {
    /// The name that `stats` shows.
    fn name(&self) -> &'static str;

    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>);
}

/// The sender that `choice` asks for.
///
/// # Errors
/// When `io_uring` is demanded and the kernel refuses it.
pub(super) fn open_sender(choice: SendChoice) -> io::Result<Box<dyn Sender>> {
    match choice {
        SendChoice::Send => Ok(Box::new(Plain)),
        SendChoice::IoUring => Ok(Box::new(Ring::open()?)),
        SendChoice::Auto => match Ring::open() {
            Ok(ring) => Ok(Box::new(ring)),
            Err(_) => Ok(Box::new(Plain)),
        },
    }
}

/// One `send` a socket.
struct Plain;

const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl Sender for Plain {
    fn name(&self) -> &'static str {
        "send"
    }

    #[expect(unsafe_code, reason = "the sockets are named by number, see Live")]
    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>) {
        results.clear();
        for target in targets {
            // SAFETY: the pointer and the length describe `bytes`.
            let sent = unsafe { libc::send(target.fd, bytes.as_ptr().cast(), bytes.len(), FLAGS) };
            results.push(match i32::try_from(sent) {
                Ok(sent) if sent >= 0 => sent,
                _ => -io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EPIPE),
            });
        }
    }
}

/// Many sends a system call.
struct Ring {
    ring: IoUring,
}

/// 512 sends a submission: more gain nothing and hold the first ones back.
const BATCH: u32 = 512;

impl Ring {
    fn open() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(BATCH)
            .or_else(|_| IoUring::new(BATCH))?;
        Ok(Self { ring })
    }

    /// Queues a send; the queue has room.
    #[expect(unsafe_code, reason = "the kernel reads the bytes by address")]
    fn queue(&mut self, target: Live, bytes: &[u8], user_data: u64) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(types::Fd(target.fd), bytes.as_ptr(), length)
            .flags(FLAGS)
            .build()
            .user_data(user_data);
        // SAFETY: `bytes` outlives the operation, because `send_all` returns only after it has taken the
        // completion of everything it queued. A full queue cannot happen: a round queues at most `BATCH`.
        let _ = unsafe { self.ring.submission().push(&entry) };
    }
}

impl Sender for Ring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>) {
        results.clear();
        results.resize(targets.len(), -libc::EAGAIN);
        for (round, chunk) in targets.chunks(BATCH as usize).enumerate() {
            let first = round * BATCH as usize;
            for (index, target) in chunk.iter().enumerate() {
                self.queue(*target, bytes, (first + index) as u64);
            }
            let mut missing = chunk.len();
            while missing > 0 {
                // Interrupted or momentarily out of room: what was queued stays queued, so ask again.
                let _ = self.ring.submit_and_wait(missing);
                for completion in self.ring.completion() {
                    let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
                    if let Some(result) = results.get_mut(index) {
                        *result = completion.result();
                    }
                    missing -= 1;
                }
            }
        }
    }
}
