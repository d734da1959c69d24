//! Why a handshake fails, with the HTTP response for each reason.

/// Why a request is refused before its purpose is considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    Malformed,
    HeadTooLarge,
    NotText,
    Repeated,
    NoHost,
    HttpTooOld,
    NotGet,
    HasBody,
    BadVersion,
    BadKey,
    /// Client side: the server's response does not match the key.
    BadAnswer,
}

impl HandshakeError {
    /// The HTTP status to answer with.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::NotGet => 405,
            Self::BadVersion => 426,
            Self::HeadTooLarge => 431,
            _ => 400,
        }
    }

    /// The stable name of the error, as the HTTP door has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotGet => "method_not_allowed",
            _ => "invalid_request",
        }
    }

    /// A short text that is safe to show.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "the request head is malformed",
            Self::HeadTooLarge => "the request head is too large",
            Self::NotText => "a header is not UTF-8",
            Self::Repeated => "a header must not be repeated",
            Self::NoHost => "Host is missing",
            Self::HttpTooOld => "a WebSocket handshake requires HTTP/1.1",
            Self::NotGet => "a WebSocket handshake requires the method GET",
            Self::HasBody => "a WebSocket handshake must not have a body",
            Self::BadVersion => "Sec-WebSocket-Version must be 13",
            Self::BadKey => "Sec-WebSocket-Key must be 16 bytes in base64",
            Self::BadAnswer => "the server's answer is not a WebSocket handshake",
        }
    }

    /// Headers that the answer must carry.
    #[must_use]
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NotGet => &[("Allow", "GET")],
            Self::BadVersion => &[("Sec-WebSocket-Version", "13"), ("Upgrade", "websocket")],
            _ => &[],
        }
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.reason())
    }
}

impl std::error::Error for HandshakeError {}
