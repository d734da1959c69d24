//! The faults of a peer, and the close code for each.

use std::fmt;

/// A way to break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ReservedBits,
    ReservedOpcode,
    FragmentedControl,
    LongControl,
    BadLength,
    Unmasked,
    Masked,
    UnexpectedContinuation,
    ExpectedContinuation,
    BadCloseBody,
    BadCloseCode,
    BadUtf8,
    BadDeflate,
    MessageTooBig,
}

/// How a connection with a fault is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError {
    /// 1002, 1007 or 1009 (section 7.4.1).
    pub close_code: u16,
    pub reason: &'static str,
}

impl From<Fault> for ProtocolError {
    fn from(fault: Fault) -> Self {
        let (close_code, reason) = match fault {
            Fault::ReservedBits => (1002, "reserved bits set"),
            Fault::ReservedOpcode => (1002, "reserved opcode"),
            Fault::FragmentedControl => (1002, "fragmented control frame"),
            Fault::LongControl => (1002, "control frame over 125 bytes"),
            Fault::BadLength => (1002, "malformed payload length"),
            Fault::Unmasked => (1002, "frame of a client without mask"),
            Fault::Masked => (1002, "frame of a server with mask"),
            Fault::UnexpectedContinuation => (1002, "continuation without a message"),
            Fault::ExpectedContinuation => (1002, "new message within a fragmented one"),
            Fault::BadCloseBody => (1002, "close frame with half a code"),
            Fault::BadCloseCode => (1002, "invalid close code"),
            Fault::BadUtf8 => (1007, "text is not UTF-8"),
            Fault::BadDeflate => (1007, "compressed message is malformed"),
            Fault::MessageTooBig => (1009, "message too big"),
        };
        Self { close_code, reason }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.reason, self.close_code)
    }
}

impl std::error::Error for ProtocolError {}
