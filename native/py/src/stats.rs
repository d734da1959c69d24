//! Counters and gauges as a dictionary.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use broker_gateway::{Hub, Shared};
use broker_server::Counters;

/// The dictionary that `Server.stats` returns.
pub(super) fn build_stats<'py>(
    py: Python<'py>,
    shared: &Shared,
    hub: &Hub,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    let counters = &shared.counters;
    let (logs, log_bytes, topics) = py.detach(|| read_logs(hub));
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
    stats.set_item("tls", read_tls(counters))?;
    stats.set_item(
        "votes_native",
        hub.votes
            .get()
            .map_or(0, |votes| votes.taken.load(Ordering::Relaxed)),
    )?;
    stats.set_item(
        "rate_limited",
        counters.rate_limited.load(Ordering::Relaxed),
    )?;
    stats.set_item("closes", counters.closes.read())?;
    stats.set_item("delays", counters.delays.read())?;
    stats.set_item("dead_loops", shared.dead_loops.load(Ordering::Relaxed))?;
    let now_us = shared.now_us();
    let lags_us: Vec<u64> = shared
        .probes
        .iter()
        .map(|probe| probe.read(now_us))
        .collect();
    stats.set_item("loop_lags_us", lags_us)?;
    stats.set_item("logs", logs)?;
    stats.set_item("log_bytes", log_bytes)?;
    let way = shared.send_way.lock().clone();
    stats.set_item("send", way.name)?;
    stats.set_item("send_reason", way.reason)?;
    stats.set_item("draining", shared.is_draining.load(Ordering::Relaxed))?;
    let (subscribers, deliveries) = (PyDict::new(py), PyDict::new(py));
    for topic in topics {
        subscribers.set_item(&topic.name, topic.subscribers)?;
        deliveries.set_item(&topic.name, topic.deliveries)?;
    }
    stats.set_item("topics", subscribers)?;
    stats.set_item("topic_deliveries", deliveries)?;
    let accounts = PyDict::new(py);
    // Copied first, so that no lock is held while Python allocates memory.
    let by_account = py.detach(|| hub.open.read());
    for (name, connections) in by_account {
        accounts.set_item(name, connections)?;
    }
    stats.set_item("accounts", accounts)?;
    Ok(stats)
}

/// TLS handshakes by their outcome.
fn read_tls(counters: &Counters) -> [(&'static str, u64); 3] {
    [
        ("full", &counters.tls_full),
        ("resumed", &counters.tls_resumed),
        ("failed", &counters.tls_failed),
    ]
    .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
}

/// The figures of one log.
struct TopicFigures {
    name: String,
    subscribers: usize,
    deliveries: u64,
}

/// The number of logs, the bytes they hold, and the figures of each.
fn read_logs(hub: &Hub) -> (usize, u64, Vec<TopicFigures>) {
    let logs: Vec<_> = hub.logs.lock().values().cloned().collect();
    let log_bytes = logs.iter().map(|log| log.log.lock().held_bytes()).sum();
    let topics = logs
        .iter()
        .map(|log| TopicFigures {
            name: log.topic.clone(),
            subscribers: log.subscribers.load(Ordering::Relaxed),
            deliveries: log.deliveries.load(Ordering::Relaxed),
        })
        .collect();
    (logs.len(), log_bytes, topics)
}
