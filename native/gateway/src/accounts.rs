//! The account of a host name, and the origins that it allows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use broker_server::Lock;

/// One account.
#[derive(Debug)]
pub struct Account {
    pub name: String,
    /// None allows any origin.
    pub origins: Option<Vec<String>>,
    /// The count of its open connections.
    pub open: Arc<OpenConnections>,
}

/// The number of open connections per account; an account without one has no entry.
#[derive(Debug, Default)]
pub struct OpenConnections(Lock<HashMap<String, usize>>);

impl OpenConnections {
    /// The counts, by the names of the accounts.
    #[must_use]
    pub fn read(&self) -> HashMap<String, usize> {
        self.0.lock().clone()
    }

    pub(super) fn enter(&self, name: &str) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(name) {
            *count += 1;
        } else {
            counts.insert(name.to_owned(), 1);
        }
    }

    pub(super) fn leave(&self, name: &str) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(name);
            }
        }
    }
}

impl Account {
    /// Whether a page of `origin` may connect; a client that sends no origin is not a page.
    #[must_use]
    pub fn allows(&self, origin: Option<&str>) -> bool {
        let (Some(origins), Some(origin)) = (&self.origins, origin) else {
            return true;
        };
        let origin = origin.trim_end_matches('/');
        origins.iter().any(|allowed| {
            allowed == "*" || allowed.trim_end_matches('/').eq_ignore_ascii_case(origin)
        })
    }

    /// Which pages may read the response to a request of `origin`, which is allowed: all, or those of this origin.
    #[must_use]
    pub fn readers(&self, origin: Option<&str>) -> Option<String> {
        match (&self.origins, origin) {
            (None, _) => Some("*".to_owned()),
            (Some(_), origin) => origin.map(str::to_owned),
        }
    }
}

/// All accounts of the product.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Lowercase, without a port.
    pub public_host: String,
    pub default: String,
    pub by_name: HashMap<String, Arc<Account>>,
}

impl Accounts {
    /// The account of a `Host` header; None when the host names one that does not exist.
    #[must_use]
    pub fn find(&self, host: Option<&str>) -> Option<Arc<Account>> {
        let host = host_name(host.unwrap_or_default()).to_ascii_lowercase();
        let label = match host
            .strip_suffix(&self.public_host)
            .and_then(|rest| rest.strip_suffix('.'))
        {
            Some(label) if host.parse::<IpAddr>().is_err() => label,
            _ => self.default.as_str(),
        };
        self.by_name.get(label).cloned()
    }
}

/// The host without its port and without a trailing dot.
fn host_name(host: &str) -> &str {
    if host.starts_with('[') {
        return host;
    }
    host.rsplit_once(':')
        .map_or(host, |(name, _)| name)
        .trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        let account = |name: &str| {
            (
                name.to_owned(),
                Arc::new(Account {
                    name: name.to_owned(),
                    origins: None,
                    open: Arc::default(),
                }),
            )
        };
        Accounts {
            public_host: "example.test".to_owned(),
            default: "main".to_owned(),
            by_name: [account("main"), account("demo")].into_iter().collect(),
        }
    }

    #[test]
    fn the_first_label_names_the_account() {
        let accounts = accounts();
        let name = |host| {
            accounts
                .find(Some(host))
                .map(|account| account.name.clone())
        };
        assert_eq!(name("demo.example.test:8001").as_deref(), Some("demo"));
        assert_eq!(name("DEMO.Example.Test").as_deref(), Some("demo"));
        assert_eq!(name("example.test").as_deref(), Some("main"));
        assert_eq!(name("127.0.0.1:8001").as_deref(), Some("main"));
        assert_eq!(name("[::1]:8001").as_deref(), Some("main"));
        assert_eq!(name("other.example.test"), None);
        assert_eq!(name("a.demo.example.test"), None);
        assert_eq!(name("notexample.test").as_deref(), Some("main"));
    }

    #[test]
    fn origins_are_compared_without_case_and_final_slash() {
        let account = Account {
            name: String::new(),
            origins: Some(vec!["https://a.test".to_owned()]),
            open: Arc::default(),
        };
        assert!(account.allows(None));
        assert!(account.allows(Some("https://A.test/")));
        assert!(!account.allows(Some("https://b.test")));
        assert!(!account.allows(Some("null")));
    }
}
