//! Counters and gauges as a dictionary.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::server::Shared;

/// The dictionary that `Server.stats` answers.
pub(super) fn build_stats<'py>(py: Python<'py>, shared: &Shared) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    let counters = &shared.counters;
    let (logs, log_bytes, topics) = py.detach(|| read_logs(shared));
    stats.set_item("connections", shared.connections.load(Ordering::Relaxed))?;
    stats.set_item(
        "subscriptions",
        counters.subscriptions.load(Ordering::Relaxed),
    )?;
    stats.set_item("deliveries", counters.deliveries.load(Ordering::Relaxed))?;
    stats.set_item(
        "delivered_bytes",
        counters.delivered_bytes.load(Ordering::Relaxed),
    )?;
    stats.set_item("messages_in", counters.messages_in.load(Ordering::Relaxed))?;
    stats.set_item(
        "slow_consumers",
        counters.slow_consumers.load(Ordering::Relaxed),
    )?;
    stats.set_item("handshakes", counters.handshakes.load(Ordering::Relaxed))?;
    stats.set_item("refused", counters.refused.load(Ordering::Relaxed))?;
    stats.set_item("logs", logs)?;
    stats.set_item("log_bytes", log_bytes)?;
    stats.set_item("send", *shared.send_name.lock())?;
    stats.set_item("draining", shared.is_draining.load(Ordering::Relaxed))?;
    let by_topic = PyDict::new(py);
    for (topic, subscribers) in topics {
        by_topic.set_item(topic, subscribers)?;
    }
    stats.set_item("topics", by_topic)?;
    Ok(stats)
}

/// How many logs there are, the bytes they hold, and the subscribers of each.
fn read_logs(shared: &Shared) -> (usize, u64, Vec<(String, usize)>) {
    let logs: Vec<_> = shared.logs.lock().values().cloned().collect();
    let log_bytes = logs.iter().map(|log| log.log.lock().held_bytes()).sum();
    let topics = logs
        .iter()
        .map(|log| (log.topic.clone(), log.subscribers.load(Ordering::Relaxed)))
        .collect();
    (logs.len(), log_bytes, topics)
}
