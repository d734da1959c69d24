//! The client's key, and the server's proof that it has read it (RFC 6455 section 1.3).

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use sha1_smol::Sha1;

/// Hashed with the key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Some clients set bits beyond the sixteenth byte; they are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The text of a key, if it encodes sixteen bytes.
pub(super) fn parse_key(text: &str) -> Option<[u8; 24]> {
    let key: [u8; 24] = text.as_bytes().try_into().ok()?;
    (BASE64.decode(key).ok()?.len() == 16).then_some(key)
}

/// The value of `Sec-WebSocket-Accept` for a key (section 4.2.2).
pub(super) fn accept_value(key: &[u8; 24]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(GUID);
    BASE64.encode(hash.digest().bytes())
}
