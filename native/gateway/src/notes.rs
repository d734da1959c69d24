//! Responses that wait to be logged by the application.

use broker_server::Lock;

/// Responses that wait to be logged; about 8 MB. It is a second of the most that a core can answer, and the
/// application takes them ten times as often.
const MOST_NOTED: usize = 30_000;

/// Of a host; the longest name has fewer (RFC 1035, section 2.3.4). A head may carry a much longer one.
const HOST_BYTES: usize = 255;

/// A host as it is logged.
pub(super) fn shorten(host: &str) -> String {
    let mut end = host.len().min(HOST_BYTES);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    host[..end].to_owned()
}

/// A response that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Milliseconds since 1970.
    pub wall_ms: u64,
    pub request_id: String,
    pub address: String,
    pub host: String,
    pub status: u16,
    pub duration_us: u64,
    pub body_bytes: usize,
}

/// What waits to be logged.
#[derive(Debug, Default)]
pub struct Notes(Lock<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    noted: Vec<Noted>,
    missing: u64,
}

impl Notes {
    /// Notes a response; returns whether the application has to be told.
    pub(super) fn add(&self, noted: Noted) -> bool {
        let mut waiting = self.0.lock();
        if waiting.noted.len() >= MOST_NOTED {
            waiting.missing += 1;
            return false;
        }
        waiting.noted.push(noted);
        waiting.noted.len() == 1
    }

    /// What was noted since the last time, and how many responses were not because of the bound.
    pub fn take(&self) -> (Vec<Noted>, u64) {
        let Waiting { noted, missing } = std::mem::take(&mut *self.0.lock());
        (noted, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_host_is_cut_between_characters() {
        assert_eq!(shorten("demo.localhost:8000"), "demo.localhost:8000");
        let long = format!("{}\u{e9}{}", "x".repeat(254), "y".repeat(9_000));
        assert_eq!(shorten(&long), "x".repeat(254));
    }

    #[test]
    fn notes_have_a_bound_and_say_what_is_missing() {
        let notes = Notes::default();
        let one = Noted {
            wall_ms: 0,
            request_id: String::new(),
            address: String::new(),
            host: String::new(),
            status: 200,
            duration_us: 0,
            body_bytes: 0,
        };
        assert!(notes.add(one.clone()));
        for _ in 0..MOST_NOTED {
            assert!(!notes.add(one.clone()));
        }
        let (taken, missing) = notes.take();
        assert_eq!((taken.len(), missing), (MOST_NOTED, 1));
        assert!(notes.add(one));
    }
}
