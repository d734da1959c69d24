//! Starting and stopping a server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::config::{Config, ConfigError};
use super::core::Core;
use super::handler::Handler;
use super::lock::Lock;
use super::mailbox::Command;
use super::send::open_sender;
use super::shared::Shared;
use super::sys::{self, Poll};
use super::turn::Loop;

/// Why a server does not start.
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

/// A server: made, started once, stopped once. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    loops: Lock<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Checks the configuration; nothing is opened to the network yet.
    ///
    /// # Errors
    /// A bad argument, or no descriptors.
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

    /// What the loops share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Binds, starts a loop with the handler that `build` makes for each number, and returns the bound port.
    ///
    /// # Errors
    /// The port cannot be had, a watch or a thread cannot be made, or `io_uring` was demanded and is refused.
    pub fn start<H: Handler>(
        &self,
        build: impl Fn(usize) -> H + Clone + Send + 'static,
    ) -> Result<u16, StartError> {
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
            let (started, is_started) = std::sync::mpsc::channel();
            // The loop is made on its own thread: a ring belongs to the thread that opened it.
            let thread = thread::Builder::new()
                .name(format!("broker-loop-{index}"))
                .spawn(move || match open_loop(shared, index, listener, &build) {
                    Ok(event_loop) => {
                        let _ = started.send(Ok(()));
                        event_loop.run();
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

    /// Sends every client away within `over_ms` and takes no new ones; returns at once.
    pub fn drain(&self, over_ms: u64) {
        self.shared.is_draining.store(true, Ordering::Release);
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Command::Drain(over_ms));
        }
    }

    /// Closes everything and waits for the loops to end. Idempotent; not to be called from a loop.
    pub fn stop(&self) {
        let loops = std::mem::take(&mut *self.loops.lock());
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Command::Stop);
        }
        for event_loop in loops {
            // A loop that panicked has said so on standard error.
            let _ = event_loop.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open_loop<H: Handler>(
    shared: Arc<Shared>,
    index: usize,
    listener: std::os::fd::OwnedFd,
    build: &impl Fn(usize) -> H,
) -> io::Result<Loop<H>> {
    let sender = open_sender(shared.config.send)?;
    *shared.send_name.lock() = sender.name();
    let core = Core::new(shared, index, Poll::open()?, sender);
    Loop::new(core, build(index), listener)
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
