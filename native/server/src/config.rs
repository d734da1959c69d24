//! The configuration of a server.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use broker_core::log;

use super::tls::Certificate;

/// How broadcasts reach the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendChoice {
    /// `IoUring` where the kernel allows it and it is faster, else `Send`.
    Auto,
    Send,
    IoUring,
}

impl SendChoice {
    /// The choice with this name: `auto`, `send` or `io_uring`.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "send" => Some(Self::Send),
            "io_uring" => Some(Self::IoUring),
            _ => None,
        }
    }
}

/// Limits and times of a server. A limit of 0 on addresses or on messages per second disables it.
#[derive(Clone, Debug)]
pub struct Config {
    /// An IP address or `localhost`.
    pub host: String,
    /// 0 chooses a free port.
    pub port: u16,
    /// Event loops; 0 means one per core.
    pub loops: usize,
    pub send: SendChoice,
    /// The longest message from a client, after inflating.
    pub message_limit_bytes: usize,
    /// The longest reply that is deflated for one connection. At some 60 MB a second a longer one would block the loop
    /// for too long, and a client can request a megabyte as often as it likes.
    pub deflated_bytes: RangeInclusive<usize>,
    pub ping_ms: u64,
    pub pong_ms: u64,
    /// After how much silence a client that wants signs of life gets one; 0 sends none.
    pub alive_ms: u64,
    /// From accept to the finished handshake, including the check of the token.
    pub handshake_ms: u64,
    /// From the first byte of a message to its last.
    pub message_ms: u64,
    /// How many bytes a subscriber may be behind if it takes nothing for a second, and how many bytes of its replies a
    /// client may leave unread.
    pub lag_bytes: u64,
    pub lag_ms: u64,
    pub connections: usize,
    /// Connections from one IPv4 address, or from one IPv6 /64 network, which is what a household or a host is
    /// assigned. With such a limit, networks have one too: see `shares`.
    pub connections_per_address: usize,
    /// Addresses exempt from that limit.
    pub unlimited_addresses: Vec<Network>,
    /// The memory that all connections may occupy: incomplete messages, handshakes and calls that the application has
    /// not answered, and replies that clients have not read.
    pub waiting_bytes: usize,
    /// For each connection.
    pub subscriptions: usize,
    pub messages_per_s: f32,
    pub messages_burst: f32,
    pub history: log::Limits,
    /// The most that the reply to one `subscribe` contains; the rest follows as pushes.
    pub recovery_entries: usize,
    pub recovery_bytes: usize,
    /// How long a log without subscribers is kept before its owner is asked to close it.
    pub linger_ms: u64,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<Network>,
    /// Proxies whose connections begin with a header of the PROXY protocol. It is read from nobody else.
    pub proxy_protocol: Vec<Network>,
    /// With one, every connection speaks TLS; it can be exchanged by [`Shared::set_certificate`].
    ///
    /// [`Shared::set_certificate`]: super::Shared::set_certificate
    pub certificate: Option<Certificate>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            loops: 0,
            send: SendChoice::Auto,
            message_limit_bytes: 1 << 20,
            deflated_bytes: 512..=64 << 10,
            ping_ms: 25_000,
            pong_ms: 10_000,
            alive_ms: 1_000,
            handshake_ms: 10_000,
            message_ms: 60_000,
            lag_bytes: 1 << 20,
            lag_ms: 15_000,
            connections: 1_000_000,
            connections_per_address: 0,
            unlimited_addresses: Vec::new(),
            waiting_bytes: 256 << 20,
            subscriptions: 100,
            messages_per_s: 100.0,
            messages_burst: 1_000.0,
            history: log::Limits {
                entries: 10_000,
                age_ms: 86_400_000,
                bytes: 64 << 20,
            },
            recovery_entries: 1_000,
            recovery_bytes: 1 << 20,
            linger_ms: 60_000,
            trusted_proxies: Vec::new(),
            proxy_protocol: Vec::new(),
            certificate: None,
        }
    }
}

/// An invalid argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub name: &'static str,
    pub allowed: &'static str,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} must be {}", self.name, self.allowed)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Checks what types cannot express.
    ///
    /// # Errors
    /// The first argument that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (self.loops <= MOST_LOOPS, "loops", "0 to 64"),
            (
                self.message_limit_bytes >= 125,
                "message_limit_bytes",
                "at least 125",
            ),
            (self.ping_ms > 0, "ping_s", "above 0"),
            (self.pong_ms > 0, "pong_s", "above 0"),
            (self.handshake_ms > 0, "handshake_s", "above 0"),
            (self.lag_bytes > 0, "lag_bytes", "above 0"),
            (self.lag_ms > 0, "lag_s", "above 0"),
            (self.connections > 0, "connections", "above 0"),
            (self.subscriptions > 0, "subscriptions", "above 0"),
            (self.messages_per_s >= 0.0, "messages_per_s", "0 or more"),
            (self.messages_burst >= 1.0, "messages_burst", "at least 1"),
            (
                self.waiting_bytes >= 1 << 20,
                "waiting_bytes",
                "at least 1 MiB",
            ),
            (self.history.entries > 0, "history_entries", "above 0"),
            (self.history.bytes > 0, "log_bytes", "above 0"),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, name, allowed)) => Err(ConfigError { name, allowed }),
            None => Ok(()),
        }
    }
}

/// One bit per loop in a log's marks.
pub const MOST_LOOPS: usize = 64;

/// An address range such as `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reads `address` or `address/bits`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |text| text.parse().ok())?;
        (bits <= most).then_some(Self { address, bits })
    }

    /// Whether `address` lies in the range; an IPv4 address inside IPv6 counts as itself.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let shift = 32 - u32::from(self.bits);
                u32::from(a).checked_shr(shift) == u32::from(b).checked_shr(shift)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let shift = 128 - u32::from(self.bits);
                u128::from(a).checked_shr(shift) == u128::from(b).checked_shr(shift)
            }
            _ => false,
        }
    }
}

/// Whether one of `networks` contains `address`.
#[must_use]
pub fn is_among(address: IpAddr, networks: &[Network]) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// The client's address: the nearest one that is not a trusted proxy.
///
/// `forwarded_for` is read from the right, because only its last entry was written by a trusted proxy.
#[must_use]
pub fn client_address(peer: IpAddr, forwarded_for: Option<&str>, trusted: &[Network]) -> IpAddr {
    let mut address = peer.to_canonical();
    for hop in forwarded_for.unwrap_or_default().rsplit(',') {
        if !is_among(address, trusted) {
            break;
        }
        let Ok(next) = hop.trim().parse::<IpAddr>() else {
            break;
        };
        address = next.to_canonical();
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("a literal address")
    }

    #[test]
    fn ranges_contain_their_addresses_only() {
        let network = Network::parse("10.1.0.0/16").expect("a range");
        assert!(network.contains(ip("10.1.255.255")));
        assert!(network.contains(ip("::ffff:10.1.0.1")));
        assert!(!network.contains(ip("10.2.0.0")));
        assert!(
            Network::parse("0.0.0.0/0")
                .expect("all")
                .contains(ip("8.8.8.8"))
        );
        assert!(Network::parse("10.0.0.0/33").is_none());
        assert!(Network::parse("here").is_none());
    }

    #[test]
    fn forwarded_for_counts_only_from_trusted_peers() {
        let trusted = [Network::parse("127.0.0.0/8").expect("a range")];
        assert_eq!(
            client_address(ip("127.0.0.1"), Some("6.6.6.6, 1.2.3.4"), &trusted),
            ip("1.2.3.4")
        );
        assert_eq!(
            client_address(ip("127.0.0.1"), Some("1.2.3.4, 127.0.0.9"), &trusted),
            ip("1.2.3.4")
        );
        assert_eq!(
            client_address(ip("9.9.9.9"), Some("1.2.3.4"), &trusted),
            ip("9.9.9.9")
        );
        assert_eq!(
            client_address(ip("127.0.0.1"), Some("junk"), &trusted),
            ip("127.0.0.1")
        );
    }

    #[test]
    fn what_is_short_or_long_is_not_deflated() {
        let deflated = Config::default().deflated_bytes;
        for (bytes, pays) in [
            (511, false),
            (512, true),
            (64 << 10, true),
            ((64 << 10) + 1, false),
        ] {
            assert_eq!(deflated.contains(&bytes), pays, "{bytes}");
        }
    }

    #[test]
    fn a_bad_argument_is_named() {
        let config = Config {
            subscriptions: 0,
            ..Config::default()
        };
        assert_eq!(
            config.validate().expect_err("0 is refused").name,
            "subscriptions"
        );
        assert!(Config::default().validate().is_ok());
    }
}
