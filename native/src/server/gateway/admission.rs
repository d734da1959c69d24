//! Which handshakes are let in: path, account, origin, token.

use std::sync::Arc;

use super::super::connection::{NoRoom, SlotIndex};
use super::super::core::Core;
use super::super::handler::Admission;
use super::super::mailbox::Refusal;
use super::super::refusals::{build_refusal, refusal};
use super::dispatch::Gateway;
use super::upcalls::Upcall;
use crate::protocol::handshake::Request;

/// The only path there is.
const PATH: &str = "/api/v1/ws";

impl Gateway {
    /// Decides about a well-formed request.
    pub(super) fn decide(&self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission {
        if request.path != PATH {
            return Admission::Refuse(refusal(404, "not_found", "there is nothing at this path"));
        }
        if !request.upgrade {
            let mut refusal = refusal(426, "upgrade_required", "this path speaks WebSocket only");
            refusal
                .headers
                .push(("Upgrade".to_owned(), "websocket".to_owned()));
            return Admission::Refuse(refusal);
        }
        let accounts = Arc::clone(&self.hub.accounts.lock());
        let Some(account) = accounts.find(request.host.as_deref()) else {
            return Admission::Refuse(refusal(404, "not_found", "there is no such account"));
        };
        if !account.allows(request.origin.as_deref()) {
            return Admission::Refuse(refusal(
                403,
                "insufficient_scope",
                "the account does not allow this origin",
            ));
        }
        core.connection(slot).account = Some(Arc::clone(&account));
        let token = match find_token(request) {
            Token::None => return Admission::Accept,
            Token::Malformed => return Admission::Refuse(bad_token()),
            Token::Given(token) => token,
        };
        let session = self
            .hub
            .grants
            .find(&account.name, &token, core.shared.wall_ms());
        if session.is_some_and(|session| Self::attach(core, slot, session)) {
            return Admission::Accept;
        }
        core.weigh(slot);
        if core.is_crowded() {
            return Admission::Refuse(build_refusal(NoRoom::Gateway));
        }
        let conn = core.id(slot);
        let connection = core.connection(slot);
        let address = connection.address.to_string();
        let Some(pending) = &mut connection.handshake else {
            return Admission::Wait;
        };
        if pending.was_asked {
            return Admission::Refuse(bad_token());
        }
        pending.was_asked = true;
        let upcall = Upcall::Authenticate {
            conn,
            account: account.name.clone(),
            token,
            address,
        };
        if self.hub.upcalls.ask(upcall) {
            return Admission::Wait;
        }
        let mut refusal = refusal(503, "unavailable", "too many handshakes are waiting");
        refusal
            .headers
            .push(("Retry-After".to_owned(), "2".to_owned()));
        Admission::Refuse(refusal)
    }
}

enum Token {
    None,
    Malformed,
    Given(String),
}

/// The token of a handshake; the header counts before the query.
fn find_token(request: &Request) -> Token {
    if let Some(authorization) = &request.authorization {
        return match authorization.split_once(' ') {
            Some((scheme, token))
                if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() =>
            {
                Token::Given(token.trim().to_owned())
            }
            _ => Token::Malformed,
        };
    }
    match request.query_value("access_token") {
        None => Token::None,
        Some(token) if token.is_empty() => Token::Malformed,
        Some(token) => Token::Given(token),
    }
}

fn bad_token() -> Refusal {
    let mut refusal = refusal(401, "invalid_token", "the access token is not valid");
    refusal
        .headers
        .push(("WWW-Authenticate".to_owned(), "Bearer".to_owned()));
    refusal
}
