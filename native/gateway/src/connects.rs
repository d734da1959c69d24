//! `GET /connect` at a socket file of the ingress: answered natively, as the API answers it.
//!
//! After a failover everybody asks for a gateway in the same seconds. The ingress passes these requests on to the
//! gateway of its node, past the API, whose replicas go on with publishing. The application keeps the table of
//! gateways up to date and gives the parts of responses that do not change, so both ways answer alike. It also writes
//! the access log: each response is noted for it, and it is told when the first one is.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use broker_core::directory::request::{self, Asked, Head};
use broker_core::directory::{Advice, Directory, Listed, Names};
use broker_server::{Lock, Respond, Responder, client_address};

use super::hub::Hub;
use super::notes::{self, Noted};
use super::upcalls::Upcall;

/// The gateways that clients are sent to, for all who send them.
#[derive(Debug)]
pub struct Gateways {
    directory: Lock<Directory>,
    random: RandomState,
    drawn: AtomicU64,
}

impl Gateways {
    #[must_use]
    pub fn new(names: Names) -> Self {
        Self {
            directory: Lock::new(Directory::new(names)),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
        }
    }

    /// Replaces the gateways; see [`Directory::set`].
    pub fn set(&self, gateways: Vec<Listed>) {
        self.directory.lock().set(gateways);
    }

    /// Chooses for a client of `account`; see [`Directory::advise`].
    pub fn advise(&self, account: &str, program: Option<&str>) -> Advice {
        let random = || {
            self.random
                .hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
        };
        self.directory.lock().advise(account, program, random)
    }
}

/// A response, without what differs each time.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// The status line and the header lines that do not change, each with its end.
    pub head: Vec<u8>,
    /// Empty where it differs each time.
    pub body: Vec<u8>,
}

/// All responses.
#[derive(Clone, Debug)]
pub struct Replies {
    pub advice: Reply,
    pub no_account: Reply,
    pub not_from_ingress: Reply,
    pub malformed: Reply,
}

/// How the ingress says who it is and who its client is: a secret, the door, and the client's address.
#[derive(Clone, Debug)]
pub struct Ingress {
    /// The header's name, in lower case.
    pub header: String,
    pub key: String,
}

impl Hub {
    /// Answers the requests that come to `path`; see [`Responder::open`]. A responder that dies counts as an event loop
    /// that has died.
    ///
    /// # Errors
    /// As [`Responder::open`].
    pub fn answer_connects(
        self: &Arc<Self>,
        path: &Path,
        gateways: Arc<Gateways>,
        ingress: Ingress,
        replies: Replies,
    ) -> io::Result<Responder> {
        let hub = Arc::clone(self);
        let door = Door {
            hub: Arc::clone(self),
            gateways,
            ingress,
            replies,
        };
        Responder::open(path, door, move || {
            hub.shared().dead_loops.fetch_add(1, Ordering::Relaxed);
        })
    }
}

struct Door {
    hub: Arc<Hub>,
    gateways: Arc<Gateways>,
    ingress: Ingress,
    replies: Replies,
}

impl Respond for Door {
    fn respond(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let began = Instant::now();
        let (asked, bytes) = match request::read(input, &self.ingress.header) {
            Head::Partial => return Some(0),
            Head::Complete(asked, bytes) => (asked, bytes),
            Head::Malformed => {
                let reply = &self.replies.malformed;
                write(reply, &reply.body, "", out);
                return None;
            }
        };
        // Only the ingress's looks whether we answer come without its secret; they are not logged.
        let Some(address) = self.find_client(&asked) else {
            let reply = &self.replies.not_from_ingress;
            write(reply, &reply.body, asked.id, out);
            return Some(bytes);
        };
        let (reply, body) = self.answer(&asked);
        let body = body.as_deref().unwrap_or(&reply.body);
        write(reply, body, asked.id, out);
        let noted = Noted {
            wall_ms: self.hub.shared().wall_ms(),
            request_id: asked.id.to_owned(),
            address: address.to_string(),
            host: notes::shorten(asked.host),
            status: reply.status,
            duration_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            body_bytes: body.len(),
        };
        if self.hub.connects.add(noted) {
            self.hub.upcalls.tell(Upcall::Connects);
        }
        Some(bytes)
    }
}

impl Door {
    fn answer(&self, asked: &Asked<'_>) -> (&Reply, Option<Vec<u8>>) {
        let accounts = Arc::clone(&self.hub.accounts.lock());
        match accounts.find(Some(asked.host)) {
            Some(account) => {
                let advice = self.gateways.advise(&account.name, asked.program);
                (&self.replies.advice, Some(advice.json))
            }
            None => (&self.replies.no_account, None),
        }
    }

    /// The address of the client; `None` if the request is not from the ingress.
    fn find_client(&self, asked: &Asked<'_>) -> Option<IpAddr> {
        let mut words = asked.ingress.splitn(3, |byte| *byte == b' ');
        let key = words.next().unwrap_or_default();
        if !are_equal(key, self.ingress.key.as_bytes()) {
            return None;
        }
        let peer = std::str::from_utf8(words.nth(1)?).ok()?.parse().ok()?;
        let trusted = &self.hub.shared().config.trusted_proxies;
        Some(client_address(
            peer,
            asked.forwarded_for.as_deref(),
            trusted,
        ))
    }
}

/// Compares in a time that does not depend on the place of the first difference.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).map(|(one, other)| one ^ other);
    one.len() == other.len() && differences.fold(0, |all, byte| all | byte) == 0
}

fn write(reply: &Reply, body: &[u8], id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&reply.head);
    out.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    if !id.is_empty() {
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_or_not() {
        assert!(are_equal(b"key", b"key"));
        assert!(!are_equal(b"key", b"kex"));
        assert!(!are_equal(b"key", b"keys"));
        assert!(!are_equal(b"", b"key"));
    }
}
