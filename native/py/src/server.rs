//! The class `Server`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::log::Limits;
use broker_gateway::{Answer, Gateway, Hub, Ingress, Mismatch, PollName, Session, Upcall, Votes};
use broker_server::{Config, ConnId, Lock, Refusal, Responder, StartError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::arguments::{
    Entry, Times, milliseconds, read_burst, read_certificate, read_entries, read_networks,
    read_send,
};
use super::gateways::{Gateways, GivenNote, GivenReply, give_note, read_replies};
use super::rates::Rates;
use super::stats::build_stats;
use super::votes::{GivenGroupReply, Group, build_groups, prepared, read_group_replies, read_poll};

/// The native half of one gateway: listener, event loops, logs.
#[pyclass(module = "broker._native", frozen)]
#[expect(
    clippy::struct_field_names,
    reason = "the server, and what belongs to it"
)]
pub struct Server {
    server: broker_gateway::Server,
    hub: Arc<Hub>,
    connects: Lock<Option<Responder>>,
}

/// The error that keeps a server from starting, as a Python exception.
fn report(error: StartError) -> PyErr {
    match error {
        StartError::Config(error) => PyValueError::new_err(error.to_string()),
        // Built from the error itself, so that it keeps its errno and becomes the right subclass.
        StartError::System(error) => match error.raw_os_error() {
            Some(code) => PyOSError::new_err((code, error.to_string())),
            None => PyOSError::new_err(error.to_string()),
        },
    }
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        *, host, port, loops = 0, send = "auto", message_limit_bytes = 1 << 20, ping_s = 25.0, pong_s = 10.0,
        alive_s = 1.0, handshake_s = 10.0, message_s = 60.0, lag_bytes = 1 << 20, lag_s = 15.0, connections = 1_000_000,
        connections_per_address = 0,
        subscriptions = 100, messages_per_s = 100.0, messages_burst = 1000, history_entries = 10_000,
        history_s = 86_400.0, log_bytes = 64 << 20, recovery_entries = 1_000, recovery_bytes = 1 << 20,
        linger_s = 60.0, trusted_proxies = vec![], proxy_protocol = vec![], unlimited_addresses = vec![],
        waiting_bytes = 256 << 20, certificate = None
    ))]
    #[expect(
        clippy::too_many_arguments,
        clippy::similar_names,
        clippy::needless_pass_by_value,
        reason = "keyword arguments"
    )]
    fn new(
        py: Python<'_>,
        host: String,
        port: u16,
        loops: usize,
        send: &str,
        message_limit_bytes: usize,
        ping_s: f64,
        pong_s: f64,
        alive_s: f64,
        handshake_s: f64,
        message_s: f64,
        lag_bytes: u64,
        lag_s: f64,
        connections: usize,
        connections_per_address: usize,
        subscriptions: usize,
        messages_per_s: f64,
        messages_burst: u32,
        history_entries: usize,
        history_s: f64,
        log_bytes: u64,
        recovery_entries: usize,
        recovery_bytes: usize,
        linger_s: f64,
        trusted_proxies: Vec<String>,
        proxy_protocol: Vec<String>,
        unlimited_addresses: Vec<String>,
        waiting_bytes: usize,
        certificate: Option<(PyBackedBytes, PyBackedBytes)>,
    ) -> PyResult<Self> {
        // Python's arguments become the configuration; durations are converted below.
        let mut config = Config {
            host,
            port,
            loops,
            send: read_send(send)?,
            message_limit_bytes,
            lag_bytes,
            connections,
            connections_per_address,
            subscriptions,
            messages_burst: read_burst(messages_burst),
            history: Limits {
                entries: history_entries,
                age_ms: 0,
                bytes: log_bytes,
            },
            recovery_entries,
            recovery_bytes,
            trusted_proxies: read_networks("trusted_proxies", &trusted_proxies)?,
            proxy_protocol: read_networks("proxy_protocol", &proxy_protocol)?,
            unlimited_addresses: read_networks("unlimited_addresses", &unlimited_addresses)?,
            waiting_bytes,
            certificate: certificate
                .map(|(chain, key)| read_certificate(&chain, &key))
                .transpose()?,
            ..Config::default()
        };
        Times {
            ping_s,
            pong_s,
            alive_s,
            handshake_s,
            message_s,
            lag_s,
            history_s,
            linger_s,
            messages_per_s,
        }
        .put(&mut config)?;
        // Opening the port does not need the interpreter lock.
        py.detach(|| {
            let server = broker_gateway::Server::new(config).map_err(report)?;
            let hub = Arc::new(
                Hub::new(Arc::clone(server.shared()))
                    .map_err(|error| report(StartError::System(error)))?,
            );
            Ok(Self {
                server,
                hub,
                connects: Lock::default(),
            })
        })
    }

    fn set_certificate(&self, py: Python<'_>, chain: &[u8], key: &[u8]) -> PyResult<()> {
        let certificate = read_certificate(chain, key)?;
        if py.detach(|| self.server.shared().set_certificate(certificate)) {
            return Ok(());
        }
        Err(PyValueError::new_err(
            "the server was started without a certificate",
        ))
    }

    fn start(&self, py: Python<'_>) -> PyResult<u16> {
        py.detach(|| Gateway::start(&self.server, &self.hub))
            .map_err(report)
    }

    fn upcall_fd(&self) -> i32 {
        self.hub.upcalls.fd()
    }

    fn take<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let upcalls = py.detach(|| self.hub.upcalls.take(limit));
        upcalls
            .into_iter()
            .map(|upcall| build_upcall(py, upcall))
            .collect()
    }

    fn set_accounts(
        &self,
        py: Python<'_>,
        public_host: &str,
        default: &str,
        accounts: HashMap<String, Option<Vec<String>>>,
    ) {
        py.detach(|| self.hub.set_accounts(public_host, default, accounts));
    }

    #[expect(clippy::too_many_arguments, reason = "what a token stands for")]
    fn grant(
        &self,
        py: Python<'_>,
        account: &str,
        token: &str,
        principal: u64,
        reader: u64,
        subject: &str,
        expires_ms: u64,
    ) {
        py.detach(|| {
            self.hub.grant(
                token,
                Session::new(account, principal, reader, subject, expires_ms),
            );
        });
    }

    fn resume(&self, py: Python<'_>, conn: u64) {
        py.detach(|| self.hub.resume(ConnId(conn)));
    }

    #[pyo3(signature = (conn, status, body, headers = vec![]))]
    fn refuse(
        &self,
        py: Python<'_>,
        conn: u64,
        status: u16,
        body: &[u8],
        headers: Vec<(String, String)>,
    ) {
        let refusal = Refusal {
            status,
            headers,
            body: body.to_vec(),
        };
        py.detach(|| self.hub.refuse(ConnId(conn), refusal));
    }

    fn sign_in(&self, py: Python<'_>, conn: u64, account: &str, token: &str) -> bool {
        py.detach(|| self.hub.sign_in(ConnId(conn), account, token))
    }

    #[expect(clippy::too_many_arguments, reason = "what a token stands for")]
    fn replace(
        &self,
        py: Python<'_>,
        account: &str,
        token: &str,
        principal: u64,
        reader: u64,
        subject: &str,
        expires_ms: u64,
    ) -> usize {
        let session = Session::new(account, principal, reader, subject, expires_ms);
        py.detach(|| self.hub.replace(token, session))
    }

    fn revoke(&self, py: Python<'_>, account: &str, subject: &str) -> usize {
        py.detach(|| self.hub.revoke(account, subject))
    }

    #[pyo3(signature = (topic, epoch, seq, public, message_id = ""))]
    fn open_log(
        &self,
        py: Python<'_>,
        topic: &str,
        epoch: &str,
        seq: u64,
        public: bool,
        message_id: &str,
    ) {
        py.detach(|| {
            self.hub
                .open_log_after(topic, epoch, seq, message_id, public);
        });
    }

    fn append(&self, py: Python<'_>, topic: &str, entries: Vec<Entry>) -> PyResult<()> {
        let entries = read_entries(entries)?;
        py.detach(|| self.hub.append(topic, &entries))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn backfill(
        &self,
        py: Python<'_>,
        topic: &str,
        epoch: &str,
        entries: Vec<Entry>,
    ) -> PyResult<()> {
        let entries = read_entries(entries)?;
        py.detach(|| self.hub.backfill(topic, epoch, &entries))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn newest_id(&self, py: Python<'_>, topic: &str) -> String {
        py.detach(|| self.hub.newest_id(topic)).unwrap_or_default()
    }

    fn head(&self, py: Python<'_>, topic: &str) -> Option<(String, u64, u64)> {
        py.detach(|| self.hub.head(topic))
    }

    fn link(&self, py: Python<'_>, topic: &str, channel_topic: &str) {
        py.detach(|| self.hub.link(topic, channel_topic));
    }

    fn unlink(&self, py: Python<'_>, topic: &str, channel_topic: &str) {
        py.detach(|| self.hub.unlink(topic, channel_topic));
    }

    fn close_log(&self, py: Python<'_>, topic: &str) -> bool {
        py.detach(|| self.hub.close_log(topic))
    }

    fn set_public(&self, py: Python<'_>, topic: &str, public: bool) {
        py.detach(|| self.hub.set_public(topic, public));
    }

    fn allow(&self, py: Python<'_>, topic: &str, reader: u64, allowed: bool) {
        py.detach(|| self.hub.allow(topic, reader, allowed));
    }

    fn reply(&self, py: Python<'_>, conn: u64, ticket: u64, result: &[u8]) {
        let json = result.to_vec();
        py.detach(|| self.hub.reply(ConnId(conn), ticket, Answer::Result, json));
    }

    fn reply_error(&self, py: Python<'_>, conn: u64, ticket: u64, error: &[u8]) {
        let json = error.to_vec();
        py.detach(|| self.hub.reply(ConnId(conn), ticket, Answer::Error, json));
    }

    fn retry(&self, py: Python<'_>, conn: u64, ticket: u64) {
        py.detach(|| self.hub.retry(ConnId(conn), ticket));
    }

    fn notify(&self, py: Python<'_>, conn: u64, message: &[u8]) {
        let message = message.to_vec();
        py.detach(|| self.hub.notify(ConnId(conn), message));
    }

    fn prepare_votes(
        &self,
        door: String,
        per_connection: &Rates,
        per_address: &Rates,
        counters: usize,
    ) -> PyResult<()> {
        let votes = Votes::new(door, per_connection.share(), per_address.share(), counters);
        self.hub
            .votes
            .set(votes)
            .map_err(|_| PyValueError::new_err("prepare_votes comes once"))
    }

    #[pyo3(signature = (
        account, program_id, context_id, measure_name, *, poll, shards, key, options, allow_change, projects, open_s
    ))]
    #[expect(clippy::too_many_arguments, reason = "all that is known of a poll")]
    fn open_poll(
        &self,
        py: Python<'_>,
        account: &str,
        program_id: &str,
        context_id: &str,
        measure_name: &str,
        poll: u64,
        shards: u64,
        key: &[u8],
        options: u16,
        allow_change: bool,
        projects: Vec<String>,
        open_s: f64,
    ) -> PyResult<()> {
        let until_ms = self.hub.shared().now_ms() + milliseconds("open_s", open_s)?;
        let poll = read_poll(poll, shards, key, options, allow_change, projects, until_ms)?;
        let votes = prepared(&self.hub)?;
        let name = PollName {
            account,
            program: program_id,
            context: context_id,
            measure: measure_name,
        };
        py.detach(|| votes.open(&name, poll));
        Ok(())
    }

    fn close_poll(
        &self,
        py: Python<'_>,
        account: &str,
        program_id: &str,
        context_id: &str,
        measure_name: &str,
    ) -> PyResult<()> {
        let votes = prepared(&self.hub)?;
        let name = PollName {
            account,
            program: program_id,
            context: context_id,
            measure: measure_name,
        };
        py.detach(|| votes.close(&name));
        Ok(())
    }

    fn take_votes<'py>(&self, py: Python<'py>, counter: usize) -> PyResult<Vec<Group<'py>>> {
        let votes = prepared(&self.hub)?;
        let groups = py.detach(|| votes.take(counter));
        Ok(build_groups(py, groups))
    }

    fn unsettled_votes(&self, counter: usize) -> PyResult<usize> {
        Ok(prepared(&self.hub)?.unsettled(counter))
    }

    fn settle_votes(
        &self,
        py: Python<'_>,
        counter: usize,
        replies: Vec<GivenGroupReply>,
    ) -> PyResult<()> {
        let replies = read_group_replies(replies);
        py.detach(|| self.hub.settle(counter, replies))
            .map_err(|Mismatch| PyValueError::new_err("replies must be those of the groups taken"))
    }

    #[pyo3(signature = (path, gateways, *, header, key, replies))]
    #[expect(clippy::needless_pass_by_value, reason = "as Python passes a path")]
    fn answer_connects(
        &self,
        py: Python<'_>,
        path: PathBuf,
        gateways: &Gateways,
        header: String,
        key: String,
        replies: [GivenReply; 4],
    ) -> PyResult<()> {
        let (gateways, replies) = (gateways.share(), read_replies(replies));
        py.detach(|| {
            let ingress = Ingress { header, key };
            let door = self
                .hub
                .answer_connects(&path, gateways, ingress, replies)?;
            *self.connects.lock() = Some(door);
            Ok(())
        })
        .map_err(|error| report(StartError::System(error)))
    }

    fn take_connects(&self, py: Python<'_>) -> (Vec<GivenNote>, u64) {
        let (noted, missing) = py.detach(|| self.hub.connects.take());
        (noted.into_iter().map(give_note).collect(), missing)
    }

    fn stop_connects(&self, py: Python<'_>) {
        py.detach(|| drop(self.connects.lock().take()));
    }

    fn set_time(&self, now_ms: u64) {
        self.server.shared().set_wall_ms(now_ms);
    }

    fn drain(&self, py: Python<'_>, over_s: f64) -> PyResult<()> {
        let milliseconds = milliseconds("over_s", over_s)?;
        py.detach(|| self.server.drain(milliseconds));
        Ok(())
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }

    fn probe(&self, py: Python<'_>) {
        py.detach(|| self.server.shared().probe());
    }

    fn dead_loops(&self) -> usize {
        self.server.shared().dead_loops.load(Ordering::Relaxed)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        build_stats(py, self.server.shared(), &self.hub)
    }
}

fn build_upcall(py: Python<'_>, upcall: Upcall) -> PyResult<Bound<'_, PyTuple>> {
    match upcall {
        Upcall::Authenticate {
            conn,
            account,
            token,
            address,
        } => ("authenticate", conn.0, account, token, address).into_pyobject(py),
        Upcall::Call {
            conn,
            ticket,
            account,
            principal,
            address,
            method,
            params,
            is_notification,
        } => {
            let params = PyBytes::new(py, &params);
            (
                "call",
                conn.0,
                ticket,
                account,
                principal,
                address,
                method,
                params,
                is_notification,
            )
                .into_pyobject(py)
        }
        Upcall::Idle { topic } => ("idle", topic).into_pyobject(py),
        Upcall::Access { topic, readers } => ("access", topic, readers).into_pyobject(py),
        Upcall::Votes { counter } => ("votes", counter).into_pyobject(py),
        Upcall::Connects => ("connects",).into_pyobject(py),
    }
}
