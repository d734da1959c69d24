//! Conversions between Python and the votes of a server.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use broker_gateway::{GroupReply, Hub, OpenPoll, Records, Votes};

/// (poll, shard, `allow_change`, whether the records are answers, records)
pub(super) type Group<'py> = (u64, u64, bool, bool, Bound<'py, PyBytes>);
/// (whether the records were counted, outcomes or a JSON-RPC error object)
pub(super) type GivenGroupReply = (bool, PyBackedBytes);

pub(super) fn build_groups(py: Python<'_>, groups: Vec<Records>) -> Vec<Group<'_>> {
    groups
        .into_iter()
        .map(|(key, records)| {
            let records = PyBytes::new(py, &records);
            (
                key.poll,
                key.shard,
                key.allow_change,
                key.is_answer,
                records,
            )
        })
        .collect()
}

pub(super) fn read_group_replies(replies: Vec<GivenGroupReply>) -> Vec<GroupReply> {
    replies
        .into_iter()
        .map(|(is_counted, bytes)| {
            if is_counted {
                GroupReply::Counted(bytes.to_vec())
            } else {
                GroupReply::Refused(bytes.to_vec())
            }
        })
        .collect()
}

/// The votes of a server that has been prepared for them.
///
/// # Errors
/// `ValueError` when the server has not been prepared.
pub(super) fn prepared(hub: &Hub) -> PyResult<&Votes> {
    hub.votes
        .get()
        .ok_or_else(|| PyValueError::new_err("prepare_votes comes first"))
}

/// Builds a poll from its arguments.
///
/// # Errors
/// `ValueError` naming the invalid argument.
pub(super) fn read_poll(
    poll: u64,
    shards: u64,
    key: &[u8],
    options: u16,
    allow_change: bool,
    projects: Vec<String>,
    until_ms: u64,
) -> PyResult<OpenPoll> {
    let key = key
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("key must be 16 bytes, not {}", key.len())))?;
    if shards == 0 || !(1..=1_000).contains(&options) {
        return Err(PyValueError::new_err(
            "shards must be above 0 and options 1 to 1000",
        ));
    }
    Ok(OpenPoll {
        uid: poll,
        shards,
        key,
        options,
        allow_change,
        projects,
        until_ms,
    })
}
