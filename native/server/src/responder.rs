//! Answers requests at a socket file, on a thread of its own.
//!
//! It is for a proxy on the same machine, which sends one request at a time over each of a few kept connections. So
//! there are no shares, deadlines or weights as event loops have them: a peer that does not read its responses is
//! dropped. Who may open the file is decided by the mode of its directory.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::lock::Lock;
use super::sys::{self, Moved, Poll, Ready, Wake};

/// Connections at a time; more are closed. The proxy has fewer.
const MOST_PEERS: usize = 1_024;
/// Of responses that a peer does not read.
const MOST_UNREAD_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 16 << 10;
/// Between two tries to accept while the process is out of descriptors.
const EXHAUSTED: Duration = Duration::from_millis(10);
const WAIT_MS: u64 = 60_000;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Reads requests and writes responses.
pub trait Respond: Send + 'static {
    /// Reads the request that `input` begins with and appends the response to it. Returns how many bytes the request
    /// has; 0 if some of it is missing; `None` to end the connection after what was appended.
    fn respond(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<usize>;
}

/// A running responder. Dropping it closes its connections and removes its file.
#[derive(Debug)]
pub struct Responder {
    path: PathBuf,
    /// By which a successor's file at the same path is told from ours.
    inode: u64,
    wake: Arc<Wake>,
    thread: Lock<Option<JoinHandle<()>>>,
}

impl Responder {
    /// Listens at `path`, in the place of whoever listened there before. `died` is called where `respond` panics or the
    /// thread has no descriptors; the file refuses connections from then on.
    ///
    /// # Errors
    /// The file cannot be made, or a thread or a descriptor cannot be had.
    pub fn open(
        path: &Path,
        respond: impl Respond,
        died: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        // Under another name first: at its own there is always somebody who answers.
        let mut new = path.as_os_str().to_owned();
        new.push("+");
        let new = PathBuf::from(new);
        if let Err(error) = std::fs::remove_file(&new)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(&new)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let inode = std::fs::metadata(&new)?.ino();
        let wake = Arc::new(Wake::open()?);
        let mut peers = Peers::new(respond);
        let is_ended = Arc::clone(&wake);
        let thread = thread::Builder::new()
            .name("broker-responder".to_owned())
            .spawn(move || {
                // What the closure owns is closed before `died` is called.
                let run = move || peers.run(&OwnedFd::from(listener), &is_ended);
                if !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(()))) {
                    died();
                }
            })?;
        std::fs::rename(&new, path)?;
        Ok(Self {
            path: path.to_owned(),
            inode,
            wake,
            thread: Lock::new(Some(thread)),
        })
    }

    /// Closes the connections and removes the file, if it is ours. Idempotent.
    pub fn close(&self) {
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        if std::fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            // What cannot be removed is refused by the system: nobody listens there.
            let _ = std::fs::remove_file(&self.path);
        }
        self.wake.wake();
        let _ = thread.join();
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.close();
    }
}

struct Peer {
    socket: OwnedFd,
    /// The beginning of a request.
    input: Vec<u8>,
    /// What the socket has not taken yet.
    out: Vec<u8>,
}

struct Peers<R> {
    respond: R,
    open: Vec<Option<Peer>>,
    buffer: Vec<u8>,
}

impl<R: Respond> Peers<R> {
    fn new(respond: R) -> Self {
        Self {
            respond,
            open: Vec::new(),
            buffer: vec![0; READ_BYTES],
        }
    }

    fn run(&mut self, listener: &OwnedFd, wake: &Wake) -> io::Result<()> {
        let mut poll = Poll::open()?;
        poll.add_source(listener, LISTENER, false)?;
        poll.add_source(wake.fd(), WAKE, false)?;
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            poll.wait(WAIT_MS, &mut ready);
            for event in &ready {
                match event.token {
                    WAKE => return Ok(()),
                    LISTENER => self.accept(&poll, listener),
                    token => {
                        self.serve(usize::try_from(token).unwrap_or(usize::MAX), event.hung_up);
                    }
                }
            }
        }
    }

    fn accept(&mut self, poll: &Poll, listener: &OwnedFd) {
        loop {
            let socket = match sys::accept_local(listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(_) => {
                    thread::sleep(EXHAUSTED);
                    return;
                }
            };
            let free = self.open.iter().position(Option::is_none);
            let place = free.unwrap_or(self.open.len());
            if place >= MOST_PEERS || poll.add_connection(&socket, place as u64).is_err() {
                continue;
            }
            if place == self.open.len() {
                self.open.push(None);
            }
            self.open[place] = Some(Peer {
                socket,
                input: Vec::new(),
                out: Vec::new(),
            });
        }
    }

    /// Reads, answers and writes as far as the socket allows; its next event comes when it allows more. For a peer that
    /// has hung up none comes: its end is read now, behind what it has sent.
    fn serve(&mut self, place: usize, has_hung_up: bool) {
        let Some(Some(peer)) = self.open.get_mut(place) else {
            return; // it was dropped after an earlier event of this turn
        };
        let is_kept = loop {
            if !peer.flush() {
                break false;
            }
            if !peer.out.is_empty() {
                break peer.out.len() <= MOST_UNREAD_BYTES;
            }
            let bytes = match sys::read(&peer.socket, &mut self.buffer) {
                Moved::Bytes(0) | Moved::Gone => break false,
                Moved::Blocked => break true,
                Moved::Bytes(bytes) => bytes,
            };
            peer.input.extend_from_slice(&self.buffer[..bytes]);
            if !peer.answer(&mut self.respond) {
                let _ = peer.flush();
                break false;
            }
            if bytes < READ_BYTES && !has_hung_up {
                break peer.flush();
            }
        };
        if !is_kept {
            self.open[place] = None;
        }
    }
}

impl Peer {
    /// Answers all whole requests; false if the connection ends after that.
    fn answer(&mut self, respond: &mut impl Respond) -> bool {
        let mut at = 0;
        while at < self.input.len() {
            match respond.respond(&self.input[at..], &mut self.out) {
                Some(0) => break,
                Some(bytes) => at += bytes,
                None => return false,
            }
        }
        self.input.drain(..at);
        true
    }

    /// Writes what the socket takes; false if the peer has gone.
    fn flush(&mut self) -> bool {
        if self.out.is_empty() {
            return true;
        }
        match sys::write(&self.socket, &self.out) {
            Moved::Bytes(bytes) => {
                self.out.drain(..bytes);
                true
            }
            Moved::Blocked => true,
            Moved::Gone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    /// Answers each line with a line; `end` ends the connection, `panic` the thread.
    struct Lines(u8);

    impl Respond for Lines {
        fn respond(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<usize> {
            let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
                return Some(0);
            };
            let line = &input[..=end];
            assert_ne!(line, b"panic\n", "as the test asked for");
            out.push(self.0);
            out.extend_from_slice(line);
            (line != b"end\n").then_some(line.len())
        }
    }

    fn place(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("broker-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        directory.join("door")
    }

    fn connect(path: &Path) -> UnixStream {
        let socket = UnixStream::connect(path).expect("somebody listens");
        socket.set_read_timeout(Some(WAIT)).expect("a time");
        socket
    }

    fn ask(socket: &mut UnixStream, text: &str) -> String {
        socket.write_all(text.as_bytes()).expect("room");
        let mut bytes = vec![0; text.len() + text.matches('\n').count()];
        socket.read_exact(&mut bytes).expect("an answer");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn requests_are_answered_in_their_order_on_kept_connections() {
        let path = place("order");
        let door = Responder::open(&path, Lines(b'>'), || {}).expect("a file");
        let (mut one, mut other) = (connect(&path), connect(&path));
        assert_eq!(ask(&mut one, "a\nb\n"), ">a\n>b\n");
        assert_eq!(ask(&mut other, "c\n"), ">c\n");
        one.write_all(b"in ").expect("room");
        assert_eq!(ask(&mut other, "d\n"), ">d\n");
        one.write_all(b"parts\n").expect("room");
        let mut bytes = [0; 10];
        one.read_exact(&mut bytes).expect("an answer");
        assert_eq!(&bytes, b">in parts\n");
        let long = format!("{}\n", "x".repeat(3 * READ_BYTES));
        assert_eq!(ask(&mut one, &long), format!(">{long}"));
        assert_eq!(ask(&mut one, "end\n"), ">end\n");
        assert_eq!(one.read(&mut bytes).expect("an end"), 0);
        assert_eq!(ask(&mut other, "e\n"), ">e\n");
        door.close();
        assert!(!path.exists());
        assert_eq!(other.read(&mut bytes).unwrap_or(0), 0);
    }

    #[test]
    fn one_that_hangs_up_within_a_request_is_removed() {
        let mut peers = Peers::new(Lines(b'>'));
        let (mut theirs, ours) = UnixStream::pair().expect("two sockets");
        ours.set_nonblocking(true).expect("a socket");
        peers.open.push(Some(Peer {
            socket: ours.into(),
            input: Vec::new(),
            out: Vec::new(),
        }));
        theirs.write_all(b"whole\nin ").expect("room");
        theirs
            .shutdown(std::net::Shutdown::Write)
            .expect("a socket");
        peers.serve(0, true);
        assert!(peers.open[0].is_none());
        let mut told = String::new();
        theirs.read_to_string(&mut told).expect("an end");
        assert_eq!(told, ">whole\n");
    }

    #[test]
    fn a_successor_takes_the_file_and_keeps_it() {
        let path = place("successor");
        let first = Responder::open(&path, Lines(b'1'), || {}).expect("a file");
        let mut kept = connect(&path);
        let second = Responder::open(&path, Lines(b'2'), || {}).expect("a file");
        assert_eq!(ask(&mut connect(&path), "a\n"), "2a\n");
        assert_eq!(ask(&mut kept, "b\n"), "1b\n");
        first.close();
        assert_eq!(ask(&mut connect(&path), "c\n"), "2c\n");
        assert_eq!(
            std::fs::metadata(&path).expect("a file").mode() & 0o777,
            0o600
        );
        drop(second);
        assert!(UnixStream::connect(&path).is_err());
    }

    #[test]
    fn a_responder_that_panics_refuses_connections_and_tells() {
        let path = place("panic");
        let (tell, told) = mpsc::channel();
        let door = Responder::open(&path, Lines(b'>'), move || {
            let _ = tell.send(());
        });
        let mut socket = connect(&path);
        socket.write_all(b"panic\n").expect("room");
        told.recv_timeout(WAIT).expect("it is told");
        assert!(UnixStream::connect(&path).is_err());
        drop(door);
    }
}
