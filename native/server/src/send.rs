//! Ways to send one span to many sockets.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, types};

use super::config::SendChoice;
use super::lock::Lock;
use super::topics::Live;

/// Sends the same bytes to many sockets without waiting for any of them.
///
/// `results` becomes one number for each target in order: the number of bytes taken, or a negated error number
/// (`EAGAIN` when the socket is full).
pub(super) trait Sender {
    /// The name in `stats`.
    fn name(&self) -> &'static str;

    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>);
}

/// A way to send, and why it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    pub reason: String,
}

/// Where the loops report their way of sending.
pub(super) type Told = Arc<Lock<Way>>;

/// The sender that `choice` requests; `told` is notified of which one it is, and of each change.
///
/// # Errors
/// When `io_uring` is required and the kernel does not permit it.
pub(super) fn open_sender(choice: SendChoice, told: &Told) -> io::Result<Box<dyn Sender>> {
    let (sender, reason): (Box<dyn Sender>, _) = match (choice, Ring::open) {
        (SendChoice::Send, _) => (Box::new(Plain), "it is set".to_owned()),
        (SendChoice::IoUring, open) => (open()?.or_plain(told), "it is set".to_owned()),
        (SendChoice::Auto, open) => match open() {
            Ok(ring) => (ring.or_plain(told), "the kernel has all of it".to_owned()),
            Err(error) => (Box::new(Plain), format!("no io_uring: {error}")),
        },
    };
    *told.lock() = Way {
        name: sender.name(),
        reason,
    };
    Ok(sender)
}

/// One `send` per socket.
struct Plain;

const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl Sender for Plain {
    fn name(&self) -> &'static str {
        "send"
    }

    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>) {
        results.clear();
        results.extend(targets.iter().map(|target| send_one(*target, bytes)));
    }
}

/// The number of bytes taken, or a negated error number.
#[expect(unsafe_code, reason = "the sockets are named by number, see Live")]
fn send_one(target: Live, bytes: &[u8]) -> i32 {
    // SAFETY: the pointer and the length describe `bytes`.
    let sent = unsafe { libc::send(target.fd, bytes.as_ptr().cast(), bytes.len(), FLAGS) };
    match i32::try_from(sent) {
        Ok(sent) if sent >= 0 => sent,
        _ => -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EPIPE),
    }
}

/// Many sends per system call.
struct Ring {
    ring: IoUring,
}

/// 512 sends per submission: more gain nothing and delay the first ones.
const BATCH: u32 = 512;
/// How many times in a row the kernel may be interrupted or out of resources without sending anything.
const FRUITLESS: usize = 1_000;
/// The result of a send whose outcome the kernel has not reported, so that its connection cannot go on.
const UNKNOWN: i32 = -libc::ECANCELED;

impl Ring {
    /// Opens a ring and sends a byte through it: a kernel may support rings but no sends (before 5.6), and a container
    /// may permit opening a ring but not using it.
    fn open() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(BATCH)
            .or_else(|_| IoUring::new(BATCH))?;
        let mut probe = Probe::new();
        let known = ring.submitter().register_probe(&mut probe);
        known.map_err(|error| named("its operations cannot be listed", &error))?;
        if !probe.is_supported(opcode::Send::CODE) {
            return Err(io::Error::other("the kernel has no send for it"));
        }
        let mut ring = Self { ring };
        ring.try_out()?;
        Ok(ring)
    }

    fn try_out(&mut self) -> io::Result<()> {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair()?;
        let target = Live {
            slot: 0,
            fd: socket.as_raw_fd(),
            cursor: 0,
        };
        let mut results = [UNKNOWN];
        let sent = self.send_round(&[target], b"x", &mut results);
        sent.map_err(|(_, error)| named("it cannot be used", &error))?;
        match results {
            [1] => Ok(()),
            [result] => {
                let error = io::Error::from_raw_os_error(-result);
                Err(named("a send failed", &error))
            }
        }
    }

    fn or_plain(self, told: &Told) -> Box<dyn Sender> {
        Box::new(Preferred {
            ring: Some(self),
            told: Arc::clone(told),
        })
    }

    /// Queues a send; the caller ensures that the queue has room.
    #[expect(unsafe_code, reason = "the kernel reads the bytes by address")]
    fn queue(&mut self, target: Live, bytes: &[u8], user_data: u64) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(types::Fd(target.fd), bytes.as_ptr(), length)
            .flags(FLAGS)
            .build()
            .user_data(user_data);
        // SAFETY: `bytes` outlives the operation, because `send_round` returns only after it has taken the completion
        // of everything that was queued. If the kernel stops reporting, nothing is in flight: a send that may not wait
        // ends while it is submitted, and what was not submitted is dropped with the ring. The queue cannot be full: a
        // round queues at most `BATCH`.
        let _ = unsafe { self.ring.submission().push(&entry) };
    }

    /// Sends to at most [`BATCH`] targets; `results` has [`UNKNOWN`] for each at first.
    ///
    /// # Errors
    /// The kernel no longer processes the ring: how many of the first targets it has taken up, and its error.
    fn send_round(
        &mut self,
        targets: &[Live],
        bytes: &[u8],
        results: &mut [i32],
    ) -> Result<(), (usize, io::Error)> {
        for (index, target) in targets.iter().enumerate() {
            self.queue(*target, bytes, index as u64);
        }
        let (mut missing, mut fruitless) = (targets.len(), 0);
        loop {
            let outcome = self.ring.submit_and_wait(missing);
            let before = missing;
            for completion in self.ring.completion() {
                let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
                if let Some(result) = results.get_mut(index) {
                    *result = completion.result();
                }
                missing -= 1;
            }
            if missing == 0 {
                return Ok(());
            }
            fruitless = if missing < before { 0 } else { fruitless + 1 };
            // Interrupted or momentarily out of resources: queued sends stay queued, so submit again.
            if let Err(error) = outcome {
                let code = error.raw_os_error();
                let may_pass = [libc::EINTR, libc::EAGAIN, libc::EBUSY]
                    .map(Some)
                    .contains(&code);
                if !may_pass || fruitless >= FRUITLESS {
                    return Err((targets.len() - self.ring.submission().len(), error));
                }
            }
        }
    }
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A ring as long as the kernel processes it, and plain sends from then on.
struct Preferred {
    ring: Option<Ring>,
    told: Told,
}

impl Sender for Preferred {
    fn name(&self) -> &'static str {
        if self.ring.is_some() {
            "io_uring"
        } else {
            "send"
        }
    }

    fn send_all(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>) {
        results.clear();
        results.resize(targets.len(), UNKNOWN);
        let mut done = 0;
        while done < targets.len() {
            let Some(ring) = &mut self.ring else { break };
            let end = targets.len().min(done + BATCH as usize);
            match ring.send_round(&targets[done..end], bytes, &mut results[done..end]) {
                Ok(()) => done = end,
                Err((taken_up, error)) => {
                    done += taken_up;
                    self.ring = None;
                    *self.told.lock() = Way {
                        name: "send",
                        reason: format!("io_uring has failed: {error}"),
                    };
                }
            }
        }
        for (target, result) in targets[done..].iter().zip(&mut results[done..]) {
            *result = send_one(*target, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn told() -> Told {
        Arc::new(Lock::new(Way {
            name: "",
            reason: String::new(),
        }))
    }

    fn pairs(count: usize) -> (Vec<UnixStream>, Vec<UnixStream>, Vec<Live>) {
        let pairs = (0..count).map(|_| UnixStream::pair().expect("descriptors"));
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.unzip();
        let targets = ours.iter().map(|socket| Live {
            slot: 0,
            fd: socket.as_raw_fd(),
            cursor: 0,
        });
        let targets = targets.collect();
        (ours, theirs, targets)
    }

    fn received(sockets: &mut [UnixStream]) -> Vec<Vec<u8>> {
        let read = sockets.iter_mut().map(|socket| {
            socket.set_nonblocking(true).expect("a socket");
            let mut bytes = vec![0; 64];
            let got = socket.read(&mut bytes).unwrap_or(0);
            bytes.truncate(got);
            bytes
        });
        read.collect()
    }

    /// Makes one system call of this thread fail.
    #[expect(unsafe_code, reason = "libc has no safe filter")]
    fn refuse(call: libc::c_long, error: i32) {
        let call = u32::try_from(call).expect("a call's number");
        let error = libc::SECCOMP_RET_ERRNO | error.unsigned_abs();
        let code = |code: u32| u16::try_from(code).expect("16 bits");
        let statement = |wanted: u32, k: u32, jf: u8| libc::sock_filter {
            code: code(wanted),
            jt: 0,
            jf,
            k,
        };
        let mut filter = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call, 1),
            statement(libc::BPF_RET | libc::BPF_K, error, 0),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: both calls only read their arguments, which outlive them.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) == 0
        };
        assert!(done, "{}", io::Error::last_os_error());
    }

    /// What `auto` chooses when one system call fails.
    fn way_without(call: libc::c_long, error: i32) -> Way {
        let told = told();
        let of_thread = Arc::clone(&told);
        let opened = thread::spawn(move || {
            refuse(call, error);
            let mut sender = open_sender(SendChoice::Auto, &of_thread).expect("plain sends");
            let (_ours, mut theirs, targets) = pairs(3);
            sender.send_all(&targets, b"x", &mut Vec::new());
            assert_eq!(received(&mut theirs), [b"x"; 3]);
            assert!(open_sender(SendChoice::IoUring, &of_thread).is_err());
        });
        opened.join().expect("it is sent");
        Way::clone(&told.lock())
    }

    #[test]
    fn a_kernel_that_cannot_work_a_ring_gets_plain_sends() {
        // Linux 5.5 supports rings but not the query for their operations; some containers only permit opening a ring.
        for (call, error) in [
            (libc::SYS_io_uring_setup, libc::EPERM),
            (libc::SYS_io_uring_register, libc::EINVAL),
            (libc::SYS_io_uring_enter, libc::EPERM),
        ] {
            let way = way_without(call, error);
            assert_eq!(way.name, "send");
            assert!(way.reason.starts_with("no io_uring: "), "{}", way.reason);
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "takes the ring away behind its owner's back")]
    fn a_ring_that_fails_for_ever_gives_way_and_nothing_is_sent_twice() {
        let Ok(ring) = Ring::open() else { return };
        let ring_fd = ring.ring.as_raw_fd();
        let told = told();
        let mut sender = ring.or_plain(&told);
        let (_ours, mut theirs, targets) = pairs(700);
        let mut results = Vec::new();
        sender.send_all(&targets, b"one", &mut results);
        assert_eq!(results, [3; 700]);
        let other = std::fs::File::open("/dev/null").expect("it is there");
        // SAFETY: both are descriptors of this test; the ring's number now refers to another file, and is closed with
        // it.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), ring_fd) } >= 0);
        for _ in 0..2 {
            sender.send_all(&targets, b"two", &mut results);
            assert_eq!(results, [3; 700]);
        }
        assert!(
            received(&mut theirs)
                .iter()
                .all(|bytes| bytes == b"onetwotwo")
        );
        assert_eq!(sender.name(), "send");
        let way = told.lock().clone();
        assert!(
            way.name == "send" && way.reason.starts_with("io_uring has failed: "),
            "{way:?}"
        );
    }
}
