//! Which gateway a client is sent to: the answer of `GET /connect`.
//!
//! A client that names no program is sent by chance, weighted by load: a gateway with no connections gets three times
//! what one gets that has the mean of all. Viewers of a program meet at few gateways, so that few follow it: each
//! program has an order of all gateways by rendezvous hashing, and a viewer goes to the first one whose load is within
//! a quarter above the mean (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
//!
//! Gateways report how many connections they have every few seconds. Between two reports what this directory has sent
//! to a gateway counts as if it had arrived, so that the one that had the fewest does not get everybody.
//!
//! [`request`] reads what the ingress asks.

pub mod request;
mod urls;

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use self::urls::{Template, quote};
use crate::log::escape;

/// A viewer's gateway may have this many percent of the mean load.
const BOUND_PERCENT: u64 = 125;
/// Connections that a gateway may have in any case: means of a few say nothing.
const FREE: u64 = 20;
/// How long clients wait while most gateways leave or none is known: everybody comes at once then.
const RETRY_MS: std::ops::RangeInclusive<u64> = 500..=5_000;

/// What the URLs of an instance have in common.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The URL of the WebSocket endpoint where no gateway is known; `{account}` and `{node}` may be in it.
    pub url: String,
    /// What stands for `{node}` where a gateway has not put its own.
    pub public_host: String,
    /// The account that needs no label.
    pub default_account: String,
}

/// A gateway that is alive.
#[derive(Clone, Debug)]
pub struct Listed {
    pub id: String,
    /// Of its WebSocket endpoint; `{account}` in it stands for the account's label with its dot.
    pub url: String,
    /// Open ones, as it has reported.
    pub connections: u64,
    pub is_draining: bool,
}

#[derive(Debug)]
struct Known {
    id: String,
    connections: u64,
    is_draining: bool,
    /// Clients that were sent there since the report.
    sent: u64,
    url: Template,
    programs: Template,
}

impl Known {
    fn load(&self) -> u64 {
        self.connections + self.sent
    }
}

/// The gateways as of the last report.
#[derive(Debug)]
pub struct Directory {
    names: Names,
    gateways: Vec<Known>,
    /// Where to go when none is known.
    expected: (Template, Template),
}

/// Where one client is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The JSON of a `Connect`.
    pub json: Vec<u8>,
    /// The program's event stream at the gateway that comes first; `None` without a program or a gateway.
    pub stream_url: Option<String>,
}

impl Directory {
    #[must_use]
    pub fn new(names: Names) -> Self {
        let expected = Template::both(&names.url, &names.public_host);
        Self {
            names,
            gateways: Vec::new(),
            expected,
        }
    }

    /// Replaces the gateways.
    ///
    /// Clients that were sent to a gateway are among the connections that it reports anew. Others may have come and
    /// gone, with the same number: then half of what was sent is forgotten, so all of it is within seconds.
    pub fn set(&mut self, gateways: Vec<Listed>) {
        let before = std::mem::take(&mut self.gateways);
        self.gateways = gateways
            .into_iter()
            .map(|listed| {
                let same = before
                    .iter()
                    .find(|one| one.id == listed.id && one.connections == listed.connections);
                let (url, programs) = Template::both(&listed.url, &self.names.public_host);
                Known {
                    id: listed.id,
                    connections: listed.connections,
                    is_draining: listed.is_draining,
                    sent: same.map_or(0, |one| one.sent / 2),
                    url,
                    programs,
                }
            })
            .collect();
    }

    /// Chooses for a client of `account`, and counts it as sent to the gateway that comes first.
    pub fn advise(
        &mut self,
        account: &str,
        program: Option<&str>,
        mut random: impl FnMut() -> u64,
    ) -> Advice {
        let order = self.order(account, program, &mut random);
        let label = if account == self.names.default_account {
            String::new()
        } else {
            format!("{account}.")
        };
        let quoted = program.map(quote);
        let stream = |programs: &Template| {
            let quoted = quoted.as_deref()?;
            Some(format!("{}{quoted}/events/stream", programs.fill(&label)))
        };
        // While more than half of the gateways leave, everybody comes at once: spread them.
        let is_calm = !order.is_empty() && 2 * order.len() >= self.gateways.len();
        let retry_ms = if is_calm {
            0
        } else {
            RETRY_MS.start() + random() % (RETRY_MS.end() - RETRY_MS.start() + 1)
        };
        let first = order.first().map(|&index| &self.gateways[index]);
        let (url, programs) = first.map_or((&self.expected.0, &self.expected.1), |known| {
            (&known.url, &known.programs)
        });
        let mut json = Vec::with_capacity(128 + 256 * order.len());
        json.extend_from_slice(br#"{"url":"#);
        put(Some(&url.fill(&label)), &mut json);
        json.extend_from_slice(br#","servers":["#);
        for (place, &index) in order.iter().enumerate() {
            let known = &self.gateways[index];
            json.extend_from_slice(if place == 0 {
                br#"{"url":"#
            } else {
                br#",{"url":"#
            });
            put(Some(&known.url.fill(&label)), &mut json);
            json.extend_from_slice(format!(r#","connections":{}"#, known.load()).as_bytes());
            json.extend_from_slice(br#","streamUrl":"#);
            put(stream(&known.programs).as_deref(), &mut json);
            json.push(b'}');
        }
        let stream_url = stream(programs);
        json.extend_from_slice(format!(r#"],"retryAfterMs":{retry_ms},"streamUrl":"#).as_bytes());
        put(stream_url.as_deref(), &mut json);
        json.push(b'}');
        let stream_url = stream_url.filter(|_| first.is_some());
        if let Some(&index) = order.first() {
            self.gateways[index].sent += 1;
        }
        Advice { json, stream_url }
    }

    /// The gateways that take clients, the one to try first at the head.
    #[expect(clippy::cast_precision_loss, reason = "numbers of connections")]
    fn order(
        &self,
        account: &str,
        program: Option<&str>,
        random: &mut impl FnMut() -> u64,
    ) -> Vec<usize> {
        let mut taking: Vec<usize> = (0..self.gateways.len())
            .filter(|&index| !self.gateways[index].is_draining)
            .collect();
        if taking.len() <= 1 {
            return taking;
        }
        let load = |index: usize| self.gateways[index].load();
        let sum: u64 = taking.iter().map(|&index| load(index)).sum();
        let count = taking.len() as u64;
        // Ordered by such keys, each comes first with a chance as its weight, the reciprocal of the factor (Efraimidis
        // and Spirakis 2006). Their logarithms: the keys themselves are 0 in floating point from some 1,000 connections.
        let mut keyed: Vec<(f64, usize)> = taking
            .iter()
            .map(|&index| {
                let factor = load(index) as f64 + sum as f64 / count as f64 / 2.0 + 1.0;
                (unit(random()).ln() * factor, index)
            })
            .collect();
        keyed.sort_by(|one, other| other.0.total_cmp(&one.0));
        taking.clear();
        taking.extend(keyed.iter().map(|&(_, index)| index));
        let Some(program) = program else {
            return taking;
        };
        let first = taking
            .iter()
            .enumerate()
            .filter(|&(_, &index)| {
                load(index) <= FREE || load(index) * count * 100 <= sum * BOUND_PERCENT
            })
            .max_by_key(|&(_, &index)| rank(account, program, &self.gateways[index].id))
            .map(|(place, _)| place);
        if let Some(place) = first {
            taking[..=place].rotate_right(1);
        }
        taking
    }
}

/// The rank of a gateway in a program's own order.
fn rank(account: &str, program: &str, gateway: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    for part in [account, program, gateway] {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff); // ends a text: no UTF-8 has it
    }
    hasher.finish()
}

/// A number above 0 and below 1.
#[expect(clippy::cast_precision_loss, reason = "both numbers are below 2^53")]
fn unit(random: u64) -> f64 {
    ((random >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Appends a text as JSON, or null.
fn put(text: Option<&str>, out: &mut Vec<u8>) {
    let Some(text) = text else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'"');
    escape(text, out);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(gateways: &[(&str, u64)]) -> Directory {
        let mut directory = Directory::new(Names {
            url: "ws://{account}localhost:8001/api/v1/ws".to_owned(),
            public_host: "localhost".to_owned(),
            default_account: "demo".to_owned(),
        });
        directory.set(listed(gateways));
        directory
    }

    fn listed(gateways: &[(&str, u64)]) -> Vec<Listed> {
        let listed = |&(id, connections): &(&str, u64)| Listed {
            id: id.to_owned(),
            url: format!("ws://{{account}}{id}:8001/api/v1/ws"),
            connections,
            is_draining: false,
        };
        gateways.iter().map(listed).collect()
    }

    /// Different numbers that are the same in every run.
    fn numbers() -> impl FnMut() -> u64 {
        let mut count = 0u64;
        move || {
            count += 1;
            let mut hasher = SipHasher24::new();
            hasher.write_u64(count);
            hasher.finish()
        }
    }

    #[test]
    fn what_was_sent_counts_until_it_is_reported() {
        let mut directory = directory(&[("one", 0)]);
        let mut random = numbers();
        for _ in 0..4 {
            directory.advise("demo", None, &mut random);
        }
        assert_eq!(directory.gateways[0].load(), 4);
        directory.set(listed(&[("one", 0)]));
        assert_eq!(directory.gateways[0].load(), 2, "half is forgotten");
        directory.set(listed(&[("one", 3)]));
        assert_eq!(directory.gateways[0].load(), 3);
    }

    #[test]
    fn equals_with_many_connections_share_the_first_place() {
        let mut random = numbers();
        let mut first = [0; 3];
        for _ in 0..3_000 {
            let directory = directory(&[("a", 50_000), ("b", 50_000), ("c", 50_000)]);
            first[directory.order("demo", None, &mut random)[0]] += 1;
        }
        assert!(
            first.iter().all(|count| (800..1_200).contains(count)),
            "{first:?}"
        );
    }

    #[test]
    fn a_program_keeps_its_gateway_within_the_bound() {
        let mut random = numbers();
        let few = directory(&[("a", 100), ("b", 100), ("c", 100)]);
        let at = few.order("demo", Some("final"), &mut random)[0];
        for _ in 0..20 {
            assert_eq!(few.order("demo", Some("final"), &mut random)[0], at);
        }
        let mut loads = [("a", 100), ("b", 100), ("c", 100)];
        loads[at].1 = 200;
        let full = directory(&loads);
        assert_ne!(full.order("demo", Some("final"), &mut random)[0], at);
    }

    #[test]
    fn a_stream_is_named_only_with_a_gateway() {
        let mut random = numbers();
        let advice = directory(&[("one", 0)]).advise("other", Some("a b"), &mut random);
        let url = "http://other.one:8001/api/v1/programs/a%20b/events/stream";
        assert_eq!(advice.stream_url.as_deref(), Some(url));
        let advice = directory(&[]).advise("other", Some("a"), &mut random);
        assert_eq!(advice.stream_url, None);
        let text = String::from_utf8(advice.json).expect("text");
        let begin = r#"{"url":"ws://other.localhost:8001/api/v1/ws","servers":[],"retryAfterMs":"#;
        assert!(text.starts_with(begin), "{text}");
    }
}
