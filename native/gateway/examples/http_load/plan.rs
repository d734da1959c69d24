//! What is sent, and when.

use std::time::Duration;

use broker_core::protocol::{Opcode, frame};

use crate::Outcome;

/// Where a request has this, its time goes in front of the spaces.
const STAMP: &[u8] = br#""sent":0                  "#;
const NAME_BYTES: usize = br#""sent":"#.len();

/// When requests are due.
pub struct Plan {
    began_ns: u64,
    lasts_ns: u64,
    interval_ns: u64,
    most: u64,
    sent: u64,
}

impl Plan {
    /// As many as are answered within so many seconds.
    pub fn lasting(seconds: f64) -> Outcome<Self> {
        let lasts_ns = u64::try_from(Duration::try_from_secs_f64(seconds)?.as_nanos())?;
        Ok(Self::new(u64::MAX, lasts_ns, 0))
    }

    /// So many; `per_s` a second, 0: without a pause.
    pub fn of(most: u64, per_s: u32) -> Self {
        let interval_ns = 1_000_000_000u64.checked_div(u64::from(per_s));
        Self::new(most, u64::MAX, interval_ns.unwrap_or(0))
    }

    fn new(most: u64, lasts_ns: u64, interval_ns: u64) -> Self {
        Self {
            began_ns: 0,
            lasts_ns,
            interval_ns,
            most,
            sent: 0,
        }
    }

    pub fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
    }

    /// When the next request was due, if it is by now; it counts as sent.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        if self.wait_ns(now_ns)? > 0 {
            return None;
        }
        let due_ns = self.began_ns + self.sent * self.interval_ns;
        self.sent += 1;
        Some(if self.interval_ns == 0 {
            now_ns
        } else {
            due_ns
        })
    }

    /// Until the next request is due; `None` when there is no next one.
    pub fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        let is_over = self.sent == self.most || now_ns - self.began_ns >= self.lasts_ns;
        (!is_over).then(|| (self.began_ns + self.sent * self.interval_ns).saturating_sub(now_ns))
    }
}

/// The bytes of a request, and where its time is told.
pub struct Request {
    bytes: Vec<u8>,
    stamps: Vec<usize>,
}

impl Request {
    /// A request as it is, or as a message of a WebSocket.
    pub fn new(text: &str, is_message: bool) -> Self {
        let mut bytes = Vec::new();
        if is_message {
            // A mask of zeros leaves the time to be written in place.
            frame::encode_masked(Opcode::Text, text.as_bytes(), [0; 4], &mut bytes);
        } else {
            bytes.extend_from_slice(text.as_bytes());
        }
        let stamps = bytes
            .windows(STAMP.len())
            .enumerate()
            .filter(|(_, window)| *window == STAMP)
            .map(|(place, _)| place + NAME_BYTES)
            .collect();
        Self { bytes, stamps }
    }

    /// The bytes with this time.
    pub fn stamped(&mut self, ns: u64) -> &[u8] {
        if !self.stamps.is_empty() {
            let width = STAMP.len() - NAME_BYTES;
            let digits = format!("{ns:<width$}");
            for &place in &self.stamps {
                self.bytes[place..place + width].copy_from_slice(&digits.as_bytes()[..width]);
            }
        }
        &self.bytes
    }
}
