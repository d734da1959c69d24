//! Headers of the PROXY protocol.

use crate::protocol::proxy::{MOST_BYTES, ProxyHeader, parse};

/// A header that is decided is so however it was cut, and it has a bound.
///
/// # Panics
/// When a rule is broken.
pub fn proxy(input: &[u8]) {
    let whole = parse(input);
    for end in 0..input.len().min(2 * MOST_BYTES) {
        match parse(&input[..end]) {
            Ok(ProxyHeader::Partial) => assert!(end < MOST_BYTES),
            decided => assert_eq!(decided, whole),
        }
    }
    if let Ok(ProxyHeader::Complete { consumed, .. }) = whole {
        assert!((15..=input.len().min(MOST_BYTES)).contains(&consumed));
        assert_eq!(parse(&input[..consumed]), whole);
        assert_eq!(parse(&input[..consumed - 1]), Ok(ProxyHeader::Partial));
    }
}
