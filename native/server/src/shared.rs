//! The state that the loops of a server share.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::config::{Config, is_among};
use super::connection::ConnId;
use super::figures::{Closes, Delays, Probe};
use super::lock::Lock;
use super::mailbox::{Command, Mailbox};
use super::refusals::Refusal;
use super::send::Way;
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
    addresses: Lock<HashMap<IpAddr, usize>>,
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
            addresses: Lock::default(),
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

    /// Whether connections of `address` are counted.
    pub(super) fn is_limited(&self, address: IpAddr) -> bool {
        self.config.connections_per_address > 0
            && !is_among(address, &self.config.unlimited_addresses)
    }

    /// Counts a connection of `address` and returns how many it has now. None when it already has `spare` more than its
    /// limit: this one is not counted.
    pub(super) fn enter(&self, address: IpAddr, spare: usize) -> Option<usize> {
        let mut addresses = self.addresses.lock();
        let count = addresses.entry(household(address)).or_default();
        if *count >= self.config.connections_per_address.saturating_add(spare) {
            return None;
        }
        *count += 1;
        Some(*count)
    }

    pub(super) fn leave(&self, address: IpAddr) {
        let mut addresses = self.addresses.lock();
        let household = household(address);
        if let Some(count) = addresses.get_mut(&household) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&household);
            }
        }
    }
}

/// The unit in which clients are assigned addresses: one IPv4 address, or 64 bits of IPv6 (RFC 6177).
#[must_use]
pub fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Network;
    use super::*;

    #[test]
    fn an_address_has_its_share_and_no_more() {
        let config = Config {
            connections_per_address: 2,
            unlimited_addresses: Network::parse("10.0.0.0/8").into_iter().collect(),
            ..Config::default()
        };
        let shared = Shared::<()>::new(config, 1).expect("descriptors");
        let ip = |text: &str| -> IpAddr { text.parse().expect("a literal address") };
        assert!(shared.is_limited(ip("9.9.9.9")) && !shared.is_limited(ip("10.1.2.3")));
        let (one, near, far) = (ip("2001:db8::1"), ip("2001:db8::2"), ip("2001:db8:0:1::1"));
        assert_eq!(shared.enter(one, 1), Some(1));
        assert_eq!(shared.enter(near, 1), Some(2));
        assert_eq!(shared.enter(near, 1), Some(3));
        assert_eq!(shared.enter(one, 1), None);
        assert_eq!(shared.enter(far, 0), Some(1));
        shared.leave(near);
        shared.leave(near);
        assert_eq!(shared.enter(one, 0), Some(2));
        assert_eq!(shared.enter(one, 0), None);
    }
}
