//! Starting and stopping a server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::config::{Config, ConfigError};
use super::event_loop::EventLoop;
use super::handler::Handler;
use super::lock::Lock;
use super::loop_state::Core;
use super::mailbox::Command;
use super::send::open_sender;
use super::shared::Shared;
use super::sys::{self, Poll};

/// Why a server cannot start.
#[derive(Debug)]
pub enum StartError {
    Config(ConfigError),
    System(io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// A server, which is created, started once and stopped once. Dropping it stops it.
#[derive(Debug)]
pub struct Server<C> {
    shared: Arc<Shared<C>>,
    loops: Lock<Vec<JoinHandle<()>>>,
}

impl<C> Server<C> {
    /// Checks the configuration; does not open anything to the network yet.
    ///
    /// # Errors
    /// An invalid argument, or no descriptors left.
    pub fn new(config: Config) -> Result<Self, StartError> {
        config.validate()?;
        parse_host(&config.host)?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let loops = if config.loops == 0 {
            cores.min(super::config::MOST_LOOPS)
        } else {
            config.loops
        };
        Ok(Self {
            shared: Arc::new(Shared::new(config, loops)?),
            loops: Lock::default(),
        })
    }

    /// The state that the loops share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared<C>> {
        &self.shared
    }

    /// Binds, starts each loop with a handler that `build` makes from the loop's number, and returns the bound port.
    ///
    /// # Errors
    /// The port is not available, a watch or a thread cannot be created, or `io_uring` was required and is not
    /// permitted.
    pub fn start<H: Handler<Command = C>>(
        &self,
        build: impl Fn(usize) -> H + Clone + Send + 'static,
    ) -> Result<u16, StartError>
    where
        C: Send + 'static,
    {
        let config = &self.shared.config;
        let host = parse_host(&config.host)?;
        let first = sys::open_listener(SocketAddr::new(host, config.port))?;
        let address = sys::local_address(&first)?;
        let mut listeners = vec![first];
        for _ in 1..self.shared.mailboxes.len() {
            listeners.push(sys::open_listener(address)?);
        }
        let mut loops = self.loops.lock();
        for (index, listener) in listeners.into_iter().enumerate() {
            let (shared, build) = (Arc::clone(&self.shared), build.clone());
            let of_loop = Arc::clone(&self.shared);
            let (started, is_started) = std::sync::mpsc::channel();
            // The loop is created on its own thread, because a ring belongs to the thread that opened it.
            let thread = thread::Builder::new()
                .name(format!("broker-loop-{index}"))
                .spawn(move || match open_loop(shared, index, listener, &build) {
                    Ok(event_loop) => {
                        let _ = started.send(Ok(()));
                        run_watched(event_loop, &of_loop, index);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                })?;
            loops.push(thread);
            is_started
                .recv()
                .map_err(|_| io::Error::other("an event loop did not start"))??;
        }
        Ok(address.port())
    }

    /// Tells all clients to reconnect within `over_ms` and accepts no new ones; returns at once.
    pub fn drain(&self, over_ms: u64) {
        self.shared.is_draining.store(true, Ordering::Release);
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Command::Drain(over_ms));
        }
    }

    /// Closes everything and waits for the loops to end. Idempotent; must not be called from a loop.
    pub fn stop(&self) {
        let loops = std::mem::take(&mut *self.loops.lock());
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Command::Stop);
        }
        for event_loop in loops {
            // A loop that panicked has reported it on standard error and counts as dead.
            let _ = event_loop.join();
        }
    }
}

impl<C> Drop for Server<C> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open_loop<H: Handler>(
    shared: Arc<Shared<H::Command>>,
    index: usize,
    listener: std::os::fd::OwnedFd,
    build: &impl Fn(usize) -> H,
) -> io::Result<EventLoop<H>> {
    let sender = open_sender(shared.config.send, &shared.send_way)?;
    let core = Core::new(shared, index, Poll::open()?, sender);
    EventLoop::new(core, build(index), listener)
}

/// Runs a loop until it is told to stop. A loop that panics is counted, its clients are disconnected so that they
/// reconnect elsewhere, and its mailbox is closed. Its listener closes too, so new clients reach the other loops.
fn run_watched<H: Handler>(
    mut event_loop: EventLoop<H>,
    shared: &Shared<H::Command>,
    index: usize,
) {
    let run = catch_unwind(AssertUnwindSafe(|| event_loop.run()));
    if run.is_ok() {
        return;
    }
    shared.mailboxes[index].close();
    // This may fail too, because of what the panic has left half done: then the sockets are closed without being
    // counted.
    let _ = catch_unwind(AssertUnwindSafe(|| event_loop.abandon()));
    drop(event_loop);
    shared.dead_loops.fetch_add(1, Ordering::Relaxed);
}

fn parse_host(host: &str) -> Result<IpAddr, ConfigError> {
    let host = if host == "localhost" {
        "127.0.0.1"
    } else {
        host
    };
    host.parse().map_err(|_| ConfigError {
        name: "host",
        allowed: "an IP address or localhost",
    })
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    use broker_core::protocol::Opcode;
    use broker_core::protocol::frame::encode_masked;
    use broker_core::protocol::handshake::Request;

    use super::super::application::Application;
    use super::super::handler::{Admission, Message};
    use super::super::ids::SlotIndex;
    use super::*;

    const WAIT: Duration = Duration::from_secs(20);
    const HEAD: &[u8] =
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

    /// Echoes, until a command makes it panic.
    struct Fragile;

    impl Application for Fragile {
        type Client = ();
        type Command = ();
    }

    impl Handler for Fragile {
        fn handshake(&mut self, _: &mut Core<Self>, _: SlotIndex, _: &Request) -> Admission {
            Admission::Accept
        }

        fn message(&mut self, core: &mut Core<Self>, slot: SlotIndex, message: Message<'_>) {
            match message {
                Message::Text("panic") => panic!("as the test asked for"),
                Message::Text(text) => core.send_text(slot, text.as_bytes()),
                Message::Binary(_) => {}
            }
        }
    }

    fn connect(port: u16) -> TcpStream {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("a loop listens");
        socket.set_read_timeout(Some(WAIT)).expect("a time");
        socket.write_all(HEAD).expect("room");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        socket
    }

    fn say(socket: &mut TcpStream, text: &str) {
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, text.as_bytes(), [1; 4], &mut frame);
        socket.write_all(&frame).expect("room");
    }

    /// Whether the socket replies; if not, it has ended.
    fn echoes(socket: &mut TcpStream) -> bool {
        say(socket, "x");
        match socket.read(&mut [0; 3]) {
            Ok(bytes) => bytes > 0,
            Err(error) => {
                assert_ne!(
                    error.kind(),
                    ErrorKind::WouldBlock,
                    "neither answered nor ended"
                );
                false
            }
        }
    }

    #[test]
    fn a_loop_that_panics_is_counted_and_the_others_go_on() {
        let config = Config {
            loops: 2,
            ..Config::default()
        };
        let server = Server::new(config).expect("a good configuration");
        let shared = Arc::clone(server.shared());
        let port = server.start(|_| Fragile).expect("a free port");
        let mut clients: Vec<_> = (0..40).map(|_| connect(port)).collect();
        assert_eq!(shared.dead_loops.load(Ordering::Relaxed), 0);
        say(&mut clients[0], "panic");
        assert_eq!(
            clients[0].read(&mut [0]).unwrap_or(0),
            0,
            "its loop is dead"
        );
        let deadline = Instant::now() + WAIT;
        while shared.dead_loops.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < deadline, "it is counted");
            thread::yield_now();
        }
        let left: Vec<_> = clients[1..].iter_mut().map(echoes).collect();
        let kept = left.iter().filter(|is_kept| **is_kept).count();
        assert!(kept > 0, "the other loop's clients stay");
        while shared.connections.load(Ordering::Relaxed) != kept {
            assert!(Instant::now() < deadline, "who is gone does not count");
            thread::yield_now();
        }
        // New clients reach the other loop, and commands for the dead one are dropped.
        assert!((0..20).all(|_| echoes(&mut connect(port))));
        shared.probe();
        let kept = shared
            .mailboxes
            .iter()
            .filter(|mailbox| mailbox.takes())
            .count();
        assert_eq!(kept, 1);
        server.stop();
    }
}
