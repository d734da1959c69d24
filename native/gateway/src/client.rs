//! The gateway's data of one connection.

use std::num::NonZeroU64;
use std::sync::Arc;

use broker_server::ClientState;

use super::accounts::Account;
use super::calls::Calls;
use super::sessions::Attached;

/// The gateway's data about one connection. It is dropped when the connection begins to close, and with it its session,
/// its calls and its place among the account's open connections.
#[derive(Debug, Default)]
pub struct Client {
    /// None before its request is read.
    pub(super) account: Option<Arc<Account>>,
    /// None while the connection is anonymous.
    pub(super) session: Option<Attached>,
    /// None while no call is pending.
    pub(super) calls: Option<Box<Calls>>,
    /// The ticket of the upcall that decides whether an event stream may begin, once it was made.
    pub(super) stream_ticket: Option<NonZeroU64>,
    /// The application was asked about the token of the handshake.
    pub(super) has_asked: bool,
    /// The client was notified that its token expires.
    pub(super) is_warned: bool,
    /// It counts among the open connections of its account.
    is_counted: bool,
}

impl Client {
    /// The account's name; empty before the request is read.
    pub(super) fn account_name(&self) -> String {
        let account = self.account.as_ref();
        account.map_or_else(String::new, |account| account.name.clone())
    }

    /// Counts it among the open connections of its account, until it is dropped.
    pub(super) fn count(&mut self) {
        if let (false, Some(account)) = (self.is_counted, &self.account) {
            account.open.enter(&account.name);
            self.is_counted = true;
        }
    }

    /// The number of pending calls.
    pub(super) fn waiting(&self) -> usize {
        self.calls.as_ref().map_or(0, |calls| calls.len())
    }
}

impl ClientState for Client {
    fn held_bytes(&self) -> usize {
        self.calls.as_ref().map_or(0, |calls| calls.held_bytes())
    }

    fn awaits_reply(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let (true, Some(account)) = (self.is_counted, &self.account) {
            account.open.leave(&account.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_connection_is_small() {
        assert!(size_of::<Client>() <= 48, "{}", size_of::<Client>());
    }
}
