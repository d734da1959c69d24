//! The state that the loops of a server share.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::config::Config;
use super::figures::{Closes, Delays, Probe};
use super::ids::ConnId;
use super::lock::Lock;
use super::mailbox::{Command, Mailbox};
use super::refusals::Refusal;
use super::send::Way;
use super::shares::Shares;
use super::tls::{Certificate, Tls};

/// Counters since the start; each loop adds to them as it goes.
#[derive(Debug, Default)]
pub struct Counters {
    pub deliveries: AtomicU64,
    pub delivered_bytes: AtomicU64,
    pub messages_in: AtomicU64,
    pub slow_consumers: AtomicU64,
    pub handshakes: AtomicU64,
    pub refused: AtomicU64,
    /// TLS handshakes: by a ticket, with a signature; and sessions that ended by an error or an alert.
    pub tls_resumed: AtomicU64,
    pub tls_full: AtomicU64,
    pub tls_failed: AtomicU64,
    /// Calls refused because a connection sends too many or too large messages.
    pub rate_limited: AtomicU64,
    pub subscriptions: AtomicUsize,
    pub closes: Closes,
    pub delays: Delays,
}

impl Counters {
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

/// All state that does not belong to one loop.
#[derive(Debug)]
pub struct Shared<C> {
    pub config: Config,
    pub mailboxes: Vec<Mailbox<C>>,
    pub counters: Counters,
    /// Loops that ended because of a bug.
    pub dead_loops: AtomicUsize,
    /// One for each loop.
    pub probes: Vec<Probe>,
    pub is_draining: AtomicBool,
    /// Connections, including those in their handshake.
    pub connections: AtomicUsize,
    /// How the loops send, as reported by the loop that chose last.
    pub send_way: Arc<Lock<Way>>,
    /// For new connections; None where the server speaks no TLS.
    certificate: Lock<Option<Certificate>>,
    pub(super) shares: Shares,
    /// For each loop and slot, the generation plus one of the open connection there, else 0.
    open: Vec<Lock<Vec<u32>>>,
    started: Instant,
    /// Milliseconds since 1970 at its creation, as far as is known.
    started_wall_ms: AtomicU64,
    random: RandomState,
    drawn: AtomicU64,
}

/// Milliseconds since 1970 by the machine's clock.
fn system_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl<C> Shared<C> {
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(config: Config, loops: usize) -> std::io::Result<Self> {
        Ok(Self {
            certificate: Lock::new(config.certificate.clone()),
            shares: Shares::new(&config),
            config,
            mailboxes: (0..loops)
                .map(|_| Mailbox::open())
                .collect::<std::io::Result<_>>()?,
            counters: Counters::default(),
            dead_loops: AtomicUsize::new(0),
            probes: (0..loops).map(|_| Probe::default()).collect(),
            is_draining: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            send_way: Arc::new(Lock::new(Way {
                name: "send",
                reason: "no loop runs yet".to_owned(),
            })),
            open: (0..loops).map(|_| Lock::default()).collect(),
            started: Instant::now(),
            started_wall_ms: AtomicU64::new(system_ms()),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
        })
    }

    /// Milliseconds since the server was created; never decreases.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Microseconds since the server was created; never decreases.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Asks each loop how late it is; `probes` has the replies.
    pub fn probe(&self) {
        for (probe, mailbox) in self.probes.iter().zip(&self.mailboxes) {
            if probe.ask(self.now_us()) {
                mailbox.send(Command::Probe);
            }
        }
    }

    /// Milliseconds since 1970, as set by the application; until then by the machine's clock.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.started_wall_ms
            .load(Ordering::Relaxed)
            .saturating_add(self.now_ms())
    }

    /// Sets the time: milliseconds since 1970.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.started_wall_ms
            .store(wall_ms.saturating_sub(self.now_ms()), Ordering::Relaxed);
    }

    /// A number that nobody outside can guess.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.random
            .hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// A random number below `bound`; 0 for 0.
    #[must_use]
    pub fn random_below(&self, bound: u64) -> u64 {
        self.random().checked_rem(bound).unwrap_or(0)
    }

    /// Resumes a waiting handshake: its handler is asked again.
    pub fn resume(&self, id: ConnId) {
        self.send(id, Command::Resume(id));
    }

    /// Ends a waiting handshake with an HTTP response.
    pub fn refuse(&self, id: ConnId, refusal: Refusal) {
        self.send(id, Command::Refuse(id, refusal));
    }

    /// Queues a command for the handler of the connection's loop.
    pub fn tell(&self, id: ConnId, command: C) {
        self.send(id, Command::Handler(command));
    }

    /// Sends a command to the loop of a connection; forged ids are ignored.
    fn send(&self, id: ConnId, command: Command<C>) {
        if let Some(mailbox) = self.mailboxes.get(id.loop_index()) {
            mailbox.send(command);
        }
    }

    /// Exchanges the certificate for connections that are accepted from now on; the others keep theirs. False where the
    /// server speaks no TLS, which no connection can begin later.
    #[must_use]
    pub fn set_certificate(&self, certificate: Certificate) -> bool {
        let mut place = self.certificate.lock();
        let Some(before) = place.take() else {
            return false;
        };
        *place = Some(certificate.after(&before));
        true
    }

    /// Whether every connection speaks TLS.
    pub(super) fn speaks_tls(&self) -> bool {
        self.config.certificate.is_some()
    }

    /// A session for a new connection, where the server speaks TLS.
    pub(super) fn begin_tls(&self) -> Option<Box<Tls>> {
        let certificate = self.certificate.lock().clone();
        certificate?.begin()
    }

    /// Whether the connection is open.
    #[must_use]
    pub fn is_open(&self, id: ConnId) -> bool {
        let Some(slots) = self.open.get(id.loop_index()) else {
            return false;
        };
        slots.lock().get(id.slot() as usize) == Some(&(id.generation() + 1))
    }

    pub(super) fn note_open(&self, id: ConnId, is_open: bool) {
        let Some(slots) = self.open.get(id.loop_index()) else {
            return;
        };
        let (mut slots, at) = (slots.lock(), id.slot() as usize);
        if slots.len() <= at {
            slots.resize(at + 1, 0);
        }
        slots[at] = if is_open { id.generation() + 1 } else { 0 };
    }

    /// Counts an open connection with `address`, its client behind a proxy; false where that has its share already.
    pub(super) fn takes(&self, address: IpAddr) -> bool {
        let others = self.connections.load(Ordering::Relaxed).saturating_sub(1);
        self.shares.enter(address, others, 0).is_some()
    }
}
