//! URLs of gateways with the accounts' labels in them.

use std::fmt::Write as _;

const ACCOUNT: &str = "{account}";
const NODE: &str = "{node}";

/// A URL with places for an account's label.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<String>);

impl Template {
    /// That of a gateway's WebSocket endpoint, and that of the folder of programs beside it, so that who publishes
    /// gateways below another path needs to say so once.
    pub fn both(url: &str, public_host: &str) -> (Self, Self) {
        let url = url.replace(NODE, public_host);
        (Self::new(&url), Self::new(&programs_url(&url)))
    }

    fn new(url: &str) -> Self {
        Self(url.split(ACCOUNT).map(str::to_owned).collect())
    }

    pub fn fill(&self, label: &str) -> String {
        self.0.join(label)
    }
}

fn programs_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("ws", url));
    let scheme = if scheme.eq_ignore_ascii_case("wss") {
        "https"
    } else {
        "http"
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let slash = if folder.is_empty() { "" } else { "/" };
    format!("{scheme}://{host}{slash}{folder}/programs/")
}

/// Percent-encodes a segment of a path, without those characters that ids may have (RFC 3986, section 2.1).
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}"); // a `String` takes everything
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(url: &str) -> String {
        Template::both(url, "host.test").1.fill("x.")
    }

    #[test]
    fn programs_are_beside_the_endpoint() {
        let of = [
            (
                "ws://{account}h:1/api/v1/ws",
                "http://x.h:1/api/v1/programs/",
            ),
            (
                "wss://{node}/live/ws?a=b#c",
                "https://host.test/live/programs/",
            ),
            ("wss://h/ws", "https://h/programs/"),
            ("wss://h", "https://h/programs/"),
        ];
        for (url, folder) in of {
            assert_eq!(programs(url), folder, "{url}");
        }
    }

    #[test]
    fn other_characters_than_those_of_ids_are_encoded() {
        assert_eq!(quote("aZ09._~:-"), "aZ09._~:-");
        assert_eq!(quote("a/b ä%"), "a%2Fb%20%C3%A4%25");
    }
}
