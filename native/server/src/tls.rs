//! TLS 1.2 and 1.3 on the connections of a server (RFC 5246, RFC 8446).
//!
//! Theory of operation. A server either has a certificate, and then each of its connections speaks TLS from its first
//! byte, or after the header of a proxy; or it has none. A session keeps no buffers of its own (rustls calls this
//! *unbuffered*): records are decrypted where they were read, and frames that many connections share are encrypted for
//! each of them into one scratch buffer of the loop. A connection holds bytes only while a record is incomplete, or
//! while its socket has not taken all of one: an encrypted record has its place in the stream and cannot be withdrawn.
//! So [`Tls::write`] takes no more than it can hand to the socket, and at most one record beyond that.
//!
//! The certificate can be exchanged at any time. A session keeps the one that it began with; tickets for resumption,
//! which are encrypted with keys of this server, outlive the exchange.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ServerConfig};

use super::sys::{self, Moved};

/// The plain text of one record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// What a record adds (its header, its nonce in TLS 1.2, its type in TLS 1.3, its tag), and a change of keys before it.
const OVERHEAD_BYTES: usize = 256;
/// What a session may keep of the client's input. A message of the handshake, which rustls limits to 64 KiB, is kept
/// until it is complete, with all that its records carry beside it.
const HANDSHAKE_BYTES: usize = 68 << 10;
/// The memory of an unfinished handshake beside those: keys, the messages that its hash covers.
const PENDING_BYTES: usize = 4 << 10;
const ALPN: &[u8] = b"http/1.1";

/// Why a certificate cannot be used; the text contains nothing of the key.
#[derive(Debug)]
pub struct CertificateError(String);

impl std::fmt::Display for CertificateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CertificateError {}

/// A certificate with its chain and its key, and the protocol versions and ciphers that go with it.
#[derive(Clone, Debug)]
pub struct Certificate(Arc<ServerConfig>);

impl Certificate {
    /// Reads a chain, the server's own certificate first, and its key, both in PEM.
    ///
    /// # Errors
    /// One of them is missing or malformed, or they do not belong together.
    pub fn read(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        // Reasons of the parser quote lines, and one file may hold both.
        let malformed = |what: &str| {
            CertificateError(format!(
                "the {what} cannot be read: it is missing or malformed PEM"
            ))
        };
        let certificates = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| malformed("certificate"))?;
        if certificates.is_empty() {
            return Err(malformed("certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| malformed("key"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| CertificateError(error.to_string()))?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(|error| CertificateError(format!("certificate and key: {error}")))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.ticketer =
            ring::Ticketer::new().map_err(|error| CertificateError(error.to_string()))?;
        // Clients keep one connection: a second ticket would be sent for nothing.
        config.send_tls13_tickets = 1;
        Ok(Self(Arc::new(config)))
    }

    /// This one in the place of `before`, whose tickets stay valid.
    #[must_use]
    pub(super) fn after(self, before: &Self) -> Self {
        let mut config = ServerConfig::clone(&self.0);
        config.ticketer = Arc::clone(&before.0.ticketer);
        Self(Arc::new(config))
    }

    /// A session for a connection that was accepted. None when the system has no random numbers.
    pub(super) fn begin(&self) -> Option<Box<Tls>> {
        let session = UnbufferedServerConnection::new(Arc::clone(&self.0)).ok()?;
        Some(Box::new(Tls {
            session,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            progress: Progress::Handshake,
            is_ended: false,
            is_closing: false,
        }))
    }
}

/// The session has failed; an alert may be left to be sent.
#[derive(Debug)]
pub(super) struct Broken;

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Handshake,
    /// We may send: TLS 1.3 lets a server do so before the client's last message.
    Writable,
    Finished,
}

/// The TLS session of one connection.
pub(super) struct Tls {
    session: UnbufferedServerConnection,
    /// Input that ends within a record or a message of the handshake. A session that has seen the beginning of a
    /// message remembers where in here it ends, and panics when it is given less.
    incoming: Vec<u8>,
    /// Records that the socket has not taken; `sent` bytes of them it has.
    outgoing: Vec<u8>,
    sent: usize,
    progress: Progress,
    /// The client has ended its side.
    is_ended: bool,
    /// Our `close_notify`, or an alert, is sent, or in `outgoing`: nothing can follow it.
    is_closing: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Whether something can be sent to the client.
    pub fn is_writable(&self) -> bool {
        self.progress != Progress::Handshake
    }

    /// Whether the client has ended its side: no more input will come.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether the input has ended within a record, or within a message of the handshake.
    pub fn is_within_record(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Bytes of records that the socket has not taken.
    pub fn unsent_bytes(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// The memory that the client makes us hold.
    pub fn held_bytes(&self) -> usize {
        let pending = if self.progress == Progress::Finished {
            0
        } else {
            PENDING_BYTES
        };
        self.incoming.capacity() + self.outgoing.capacity() + pending
    }

    /// Processes input, and appends what it decrypts to `plain`. Replies of the handshake, or an alert, may be left to
    /// [`Tls::flush`]. Returns the kind of the handshake when this input has finished it.
    ///
    /// # Errors
    /// The client breaks the protocol, or has nothing in common with us.
    pub fn feed(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<Option<HandshakeKind>, Broken> {
        if self.is_ended {
            return Ok(None);
        }
        if self.incoming.is_empty() {
            let used = self.process(bytes, plain)?;
            self.incoming.extend_from_slice(&bytes[used..]);
        } else {
            let mut input = std::mem::take(&mut self.incoming);
            input.extend_from_slice(bytes);
            let used = self.process(&mut input, plain)?;
            // An empty one frees its memory.
            self.incoming = input.split_off(used);
        }
        if self.is_ended {
            // What follows the end is not read.
            self.incoming = Vec::new();
        }
        if self.incoming.len() > HANDSHAKE_BYTES {
            return Err(Broken);
        }
        if self.progress == Progress::Finished || self.session.is_handshaking() {
            return Ok(None);
        }
        self.progress = Progress::Finished;
        Ok(self.session.handshake_kind())
    }

    /// Processes as much of `input` as is complete; returns how much that is.
    fn process(&mut self, input: &mut [u8], plain: &mut Vec<u8>) -> Result<usize, Broken> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.session.process_tls_records(&mut input[used..]);
            let Ok(state) = state else {
                self.keep_alert(&mut input[used..]);
                return Err(Broken);
            };
            let mut is_done = false;
            match state {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    put(&mut self.outgoing, &mut data);
                }
                // It is sent before anything that is encrypted later.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::WriteTraffic(_) => {
                    if self.progress == Progress::Handshake {
                        self.progress = Progress::Writable;
                    }
                    is_done = true;
                }
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    self.is_ended = true;
                    is_done = true;
                }
                // Early data are not offered.
                _ => is_done = true,
            }
            used += discard;
            if is_done {
                return Ok(used);
            }
        }
    }

    /// Keeps what a session that has failed at `input` has still to say; the last of it is the alert with the reason.
    fn keep_alert(&mut self, input: &mut [u8]) {
        self.is_closing = true;
        // What it has to say comes before more input is read.
        while self.session.wants_write() {
            match self.session.process_tls_records(input).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => put(&mut self.outgoing, &mut data),
                _ => return,
            }
        }
    }

    /// Sends the records that are left; `Bytes` when none are left any more.
    pub fn flush(&mut self, socket: &OwnedFd) -> Moved {
        while self.unsent_bytes() > 0 {
            match sys::write(socket, &self.outgoing[self.sent..]) {
                Moved::Bytes(sent) => self.sent += sent,
                other => return other,
            }
        }
        self.outgoing = Vec::new();
        self.sent = 0;
        Moved::Bytes(0)
    }

    /// Encrypts the pieces, one behind the other, and sends them. `Bytes` says how many of theirs are taken: they are
    /// sent, but for the end of the last record, which is left to [`Tls::flush`]. `Blocked` when none are taken.
    pub fn write(
        &mut self,
        socket: &OwnedFd,
        pieces: &[IoSlice<'_>],
        scratch: &mut Scratch,
    ) -> Moved {
        match self.flush(socket) {
            Moved::Bytes(_) => {}
            other => return other,
        }
        let Scratch { joined, record } = scratch;
        let plain: &[u8] = if let [piece] = pieces {
            piece
        } else {
            joined.clear();
            for piece in pieces {
                joined.extend_from_slice(piece);
            }
            joined
        };
        let mut taken = 0;
        for part in plain.chunks(RECORD_BYTES) {
            let Some(bytes) = self.seal(part, record) else {
                return Moved::Gone;
            };
            taken += part.len();
            let record = &record[..bytes];
            let sent = match sys::write(socket, record) {
                Moved::Bytes(sent) => sent,
                Moved::Blocked => 0,
                Moved::Gone => return Moved::Gone,
            };
            if sent < record.len() {
                self.outgoing.extend_from_slice(&record[sent..]);
                break;
            }
        }
        Moved::Bytes(taken)
    }

    /// Encrypts one record; None when the session cannot send. Nothing of the input is used up: [`Tls::feed`] has
    /// processed all that is complete.
    fn seal(&mut self, plain: &[u8], record: &mut Vec<u8>) -> Option<usize> {
        if self.is_closing {
            return None;
        }
        record.resize(RECORD_BYTES + OVERHEAD_BYTES, 0);
        match self.session.process_tls_records(&mut self.incoming).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => traffic.encrypt(plain, record).ok(),
            _ => None,
        }
    }

    /// Tells the client that nothing follows; left to [`Tls::flush`].
    pub fn put_end(&mut self) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
            self.session.process_tls_records(&mut self.incoming).state
        {
            let mut record = [0; OVERHEAD_BYTES];
            if let Ok(bytes) = traffic.queue_close_notify(&mut record) {
                self.outgoing.extend_from_slice(&record[..bytes]);
            }
        }
    }
}

/// Appends a record of the handshake, or an alert.
fn put<Data>(out: &mut Vec<u8>, data: &mut EncodeTlsData<'_, Data>) {
    let before = out.len();
    let mut encoded = data.encode(&mut []);
    if let Err(EncodeError::InsufficientSize(size)) = &encoded {
        out.resize(before + size.required_size, 0);
        encoded = data.encode(&mut out[before..]);
    }
    out.truncate(before + encoded.unwrap_or(0));
}

/// What a loop needs to encrypt; its connections share it.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Several pieces as one.
    joined: Vec<u8>,
    record: Vec<u8>,
}

/// Writes pieces at once, through the session where there is one.
pub(super) fn write(
    socket: &OwnedFd,
    tls: Option<&mut Tls>,
    pieces: &[IoSlice<'_>],
    scratch: &mut Scratch,
) -> Moved {
    match tls {
        None => sys::write_joined(socket, pieces),
        Some(tls) => tls.write(socket, pieces, scratch),
    }
}
