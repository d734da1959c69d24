//! Header lines and the request target.

use httparse::Header;

use super::error::HandshakeError;

/// The header lines of a head; lookup ignores case.
pub(super) struct Headers<'a>(pub &'a [Header<'a>]);

impl<'a> Headers<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = Result<&'a str, HandshakeError>> {
        let named = self
            .0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| {
            std::str::from_utf8(header.value)
                .map(str::trim)
                .map_err(|_| HandshakeError::NotText)
        })
    }

    pub fn find_one(&self, name: &str) -> Result<Option<&'a str>, HandshakeError> {
        let mut values = self.all(name);
        let first = values.next().transpose()?;
        if values.next().is_some() {
            return Err(HandshakeError::Repeated);
        }
        Ok(first)
    }

    /// All values of a list header, joined (RFC 9110 section 5.3).
    pub fn join(&self, name: &str) -> Result<Option<String>, HandshakeError> {
        let values = self.all(name).collect::<Result<Vec<_>, _>>()?;
        Ok((!values.is_empty()).then(|| values.join(", ")))
    }

    pub fn has_token(&self, name: &str, token: &str) -> Result<bool, HandshakeError> {
        for value in self.all(name) {
            if value?
                .split(',')
                .any(|element| element.trim().eq_ignore_ascii_case(token))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Splits the request target; the absolute form names the authority itself (RFC 9112 section 3.2.2).
pub(super) fn split_target(
    target: &str,
) -> Result<(Option<String>, String, Option<String>), HandshakeError> {
    let (authority, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let schemes = ["http://", "https://", "ws://", "wss://"];
        let rest = schemes
            .iter()
            .find_map(|scheme| target.strip_prefix(scheme))
            .ok_or(HandshakeError::Malformed)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        (Some(rest[..end].to_owned()), &rest[end..])
    };
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, None), |(path, query)| (path, Some(query.to_owned())));
    let path = if path.is_empty() { "/" } else { path };
    Ok((authority, path.to_owned(), query))
}

/// Decodes a query's `+` and `%xx`; `None` when that is malformed or not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (bytes.next().and_then(hex)?, bytes.next().and_then(hex)?);
                high << 4 | low
            }
            _ => byte,
        });
    }
    String::from_utf8(out).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}
