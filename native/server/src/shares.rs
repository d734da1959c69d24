//! How many of a server's connections one address, and one network, may have.
//!
//! An address has a fixed limit. That of a network shrinks with the square of the share that is free: 38 % of all
//! connections while it is alone, and after n networks that took all that they could get, 1/(n + 1) or more are free.
//! (If 1/n are free, the next network leaves f with f + f² = 1/n, and that f exceeds 1/(n + 1).) A limit proportional to
//! what is free, as in A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
//! Switches" (1998), fits queues that drain; connections are held, so each network in turn would take half of the rest.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::config::{Config, Network, is_among};
use super::lock::Lock;

/// The connections of each address and of each network.
#[derive(Debug)]
pub(super) struct Shares {
    /// Of one address; 0 is no limit, of networks neither.
    an_address: usize,
    connections: usize,
    unlimited: Vec<Network>,
    open: Lock<Open>,
}

#[derive(Debug, Default)]
struct Open {
    addresses: HashMap<IpAddr, usize>,
    networks: HashMap<IpAddr, usize>,
}

impl Shares {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            an_address: config.connections_per_address,
            connections: config.connections,
            unlimited: config.unlimited_addresses.clone(),
            open: Lock::default(),
        }
    }

    /// Whether connections of `address` are counted.
    pub(super) fn is_limited(&self, address: IpAddr) -> bool {
        self.an_address > 0 && !is_among(address, &self.unlimited)
    }

    /// Counts a connection of `address` and returns by how many its address or network exceeds its share now. None when
    /// that would be more than `spare`: this connection is not counted.
    ///
    /// `others`: all other connections of the server.
    pub(super) fn enter(&self, address: IpAddr, others: usize, spare: usize) -> Option<usize> {
        let mut open = self.open.lock();
        let Open {
            addresses,
            networks,
        } = &mut *open;
        let of_address = addresses.entry(household(address)).or_default();
        let of_network = networks.entry(network(address)).or_default();
        let excess = (*of_address + 1)
            .saturating_sub(self.an_address)
            .max((*of_network + 1).saturating_sub(self.limit_of_network(others)));
        let is_counted = excess <= spare;
        if is_counted {
            *of_address += 1;
            *of_network += 1;
        } else {
            forget_unused(addresses, household(address));
            forget_unused(networks, network(address));
        }
        is_counted.then_some(excess)
    }

    /// At least one, so that the last places can be used.
    fn limit_of_network(&self, others: usize) -> usize {
        let free = self.connections.saturating_sub(others) as u128;
        let limit = free * free / (self.connections as u128).max(1);
        usize::try_from(limit).unwrap_or(usize::MAX).max(1)
    }

    /// Counts one connection of `address` less.
    pub(super) fn leave(&self, address: IpAddr) {
        let mut open = self.open.lock();
        take_one(&mut open.addresses, household(address));
        take_one(&mut open.networks, network(address));
    }
}

fn take_one(counts: &mut HashMap<IpAddr, usize>, key: IpAddr) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
    }
    forget_unused(counts, key);
}

fn forget_unused(counts: &mut HashMap<IpAddr, usize>, key: IpAddr) {
    if counts.get(&key) == Some(&0) {
        counts.remove(&key);
    }
}

/// The unit in which clients are assigned addresses: one IPv4 address, or 64 bits of IPv6 (RFC 6177).
#[must_use]
pub fn household(address: IpAddr) -> IpAddr {
    prefix(address, 32, 64)
}

/// What one holder may have whole: 24 bits of IPv4, or 48 of IPv6, the most that RFC 6177 assigns to a site.
fn network(address: IpAddr) -> IpAddr {
    prefix(address, 24, 48)
}

fn prefix(address: IpAddr, v4_bits: u32, v6_bits: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & (u32::MAX << (32 - v4_bits))).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & (u128::MAX << (128 - v6_bits))).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("a literal address")
    }

    fn shares(connections: usize, an_address: usize) -> Shares {
        Shares::new(&Config {
            connections,
            connections_per_address: an_address,
            unlimited_addresses: Network::parse("10.0.0.0/8").into_iter().collect(),
            ..Config::default()
        })
    }

    #[test]
    fn an_address_has_its_share_and_no_more() {
        let shares = shares(1_000_000, 2);
        assert!(shares.is_limited(ip("9.9.9.9")) && !shares.is_limited(ip("10.1.2.3")));
        let (one, near, far) = (ip("2001:db8::1"), ip("2001:db8::2"), ip("2001:db8:0:1::1"));
        assert_eq!(shares.enter(one, 0, 1), Some(0));
        assert_eq!(shares.enter(near, 1, 1), Some(0));
        assert_eq!(shares.enter(near, 2, 1), Some(1));
        assert_eq!(shares.enter(one, 3, 1), None);
        assert_eq!(shares.enter(far, 3, 0), Some(0));
        shares.leave(near);
        shares.leave(near);
        assert_eq!(shares.enter(one, 2, 0), Some(0));
        assert_eq!(shares.enter(one, 3, 0), None);
    }

    #[test]
    fn networks_that_take_all_they_can_get_leave_some() {
        let connections = 10_000;
        for in_turns in [false, true] {
            let shares = shares(connections as usize, connections as usize);
            let mut open = 0;
            for greedy in 1..=50 {
                for round in 0..connections {
                    let network = if in_turns { round % greedy } else { greedy };
                    // Each connection from another address of the network.
                    let address = Ipv4Addr::from((network << 8) | (round % 256));
                    open += usize::from(shares.enter(address.into(), open, 0).is_some());
                }
                let (free, least) = (connections as usize - open, connections / (greedy + 1));
                assert!(free >= least as usize, "{greedy}: {free}");
                assert!(greedy > 1 || free.abs_diff(6_180) < 5, "{free}");
            }
            assert_eq!(shares.enter(ip("2001:db8::1"), open, 0), Some(0));
        }
    }

    #[test]
    fn the_last_place_can_be_used() {
        let shares = shares(100, 100);
        assert_eq!(shares.enter(ip("2001:db8::1"), 98, 0), Some(0));
        assert_eq!(shares.enter(ip("2001:db8:0:1::"), 99, 0), None);
        assert_eq!(shares.enter(ip("2001:db8:1::"), 99, 0), Some(0));
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let shares = shares(1, 1);
        assert_eq!(shares.enter(ip("9.9.9.9"), 0, 0), Some(0));
        assert_eq!(shares.enter(ip("9.9.9.8"), 1, 0), None);
        shares.leave(ip("9.9.9.9"));
        let open = shares.open.lock();
        assert!(open.addresses.is_empty() && open.networks.is_empty());
    }
}
