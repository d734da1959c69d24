//! Converts Python's arguments to the server's configuration and entries.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use broker_core::log::{Kind, Limits};
use broker_gateway::OwnedEntry;
use broker_server::{Certificate, Config, Network, SendChoice};

/// (kind, epoch, seq, method, params)
pub(super) type Entry = (u8, String, u64, String, PyBackedBytes);

/// `entries` as owned ones.
///
/// # Errors
/// `ValueError` for a kind that is not allowed in a log.
pub(super) fn read_entries(entries: Vec<Entry>) -> PyResult<Vec<OwnedEntry>> {
    entries
        .into_iter()
        .map(|(kind, epoch, seq, method, params)| {
            let kind = match kind {
                0 => Kind::Push,
                1 => Kind::Notice,
                2 => Kind::Reset,
                3 => Kind::Gone,
                _ => {
                    return Err(PyValueError::new_err(format!(
                        "kind must be 0 to 3, not {kind}"
                    )));
                }
            };
            Ok(OwnedEntry {
                kind,
                epoch,
                seq,
                method,
                params: params.to_vec(),
            })
        })
        .collect()
}

/// Times and rates as passed by Python.
#[expect(clippy::struct_field_names, reason = "the unit is part of the name")]
pub(super) struct Times {
    pub ping_s: f64,
    pub pong_s: f64,
    pub alive_s: f64,
    pub handshake_s: f64,
    pub message_s: f64,
    pub lag_s: f64,
    pub history_s: f64,
    pub linger_s: f64,
    pub messages_per_s: f64,
}

impl Times {
    /// Stores the times in `config`.
    ///
    /// # Errors
    /// `ValueError` for one that is negative or not a number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a rate needs no more precision"
    )]
    pub fn put(&self, config: &mut Config) -> PyResult<()> {
        config.ping_ms = milliseconds("ping_s", self.ping_s)?;
        config.pong_ms = milliseconds("pong_s", self.pong_s)?;
        config.alive_ms = milliseconds("alive_s", self.alive_s)?;
        config.handshake_ms = milliseconds("handshake_s", self.handshake_s)?;
        config.message_ms = milliseconds("message_s", self.message_s)?;
        config.lag_ms = milliseconds("lag_s", self.lag_s)?;
        config.linger_ms = milliseconds("linger_s", self.linger_s)?;
        config.history = Limits {
            age_ms: milliseconds("history_s", self.history_s)?,
            ..config.history
        };
        config.messages_per_s = self.messages_per_s as f32;
        Ok(())
    }
}

/// `seconds` in milliseconds.
///
/// # Errors
/// `ValueError` naming the argument unless it is 0 to ten years.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range has been checked"
)]
pub(super) fn milliseconds(name: &str, seconds: f64) -> PyResult<u64> {
    const TEN_YEARS_S: f64 = 315_360_000.0;
    if (0.0..=TEN_YEARS_S).contains(&seconds) {
        return Ok((seconds * 1000.0).round() as u64);
    }
    Err(PyValueError::new_err(format!(
        "{name} must be 0 to {TEN_YEARS_S} seconds, not {seconds}"
    )))
}

/// A burst in the unit of the bucket.
#[expect(
    clippy::cast_precision_loss,
    reason = "a burst of millions needs no exact count"
)]
pub(super) fn read_burst(messages: u32) -> f32 {
    messages as f32
}

/// The strategy with this name.
///
/// # Errors
/// `ValueError` for an unknown one.
pub(super) fn read_send(name: &str) -> PyResult<SendChoice> {
    SendChoice::find(name).ok_or_else(|| {
        PyValueError::new_err(format!("send must be auto, send or io_uring, not {name:?}"))
    })
}

/// A certificate and its key, in PEM.
///
/// # Errors
/// `ValueError` for what cannot be used; it contains nothing of the key.
pub(super) fn read_certificate(chain: &[u8], key: &[u8]) -> PyResult<Certificate> {
    Certificate::read(chain, key).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Address ranges.
///
/// # Errors
/// `ValueError` for one that is neither an address nor a range.
pub(super) fn read_networks(name: &str, texts: &[String]) -> PyResult<Vec<Network>> {
    texts
        .iter()
        .map(|text| {
            Network::parse(text).ok_or_else(|| {
                PyValueError::new_err(format!("{name} must be addresses or ranges, not {text:?}"))
            })
        })
        .collect()
}
