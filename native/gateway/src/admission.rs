//! Admission of handshakes: path, account, origin, token.

use std::sync::Arc;

use broker_core::protocol::handshake::Request;
use broker_server::{Admission, NoRoom, Refusal, SlotIndex};

use super::accounts::Account;
use super::gateway::{Core, Gateway};
use super::outcome::unauthorized;
use super::streams;
use super::upcalls::Upcall;

/// The path of the WebSocket.
const PATH: &str = "/api/v1/ws";

/// What the query may ask for by a truth value, and what grants it.
type Wish = (&'static str, fn(&mut Core, SlotIndex));

/// Several notifications as one message, and signs of life.
const WISHES: [Wish; 2] = [
    ("batch", |core, slot| core.set_joined(slot, true)),
    ("alive", |core, slot| core.set_alive(slot)),
];

/// What a request asks for.
enum Door {
    WebSocket,
    /// The events of the program with this id.
    Stream(String),
}

impl Gateway {
    /// Decides about a well-formed request.
    pub(super) fn decide(&self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission {
        let door = match find_door(request) {
            Ok(door) => door,
            Err(refusal) => return Admission::Refuse(refusal),
        };
        let accounts = Arc::clone(&self.hub.accounts.lock());
        let Some(account) = accounts.find(request.host.as_deref()) else {
            return Admission::Refuse(Refusal::json(404, "not_found", "there is no such account"));
        };
        if !account.allows(request.origin.as_deref()) {
            return Admission::Refuse(Refusal::json(
                403,
                "insufficient_scope",
                "the account does not allow this origin",
            ));
        }
        match door {
            Door::WebSocket => {
                for (name, set) in WISHES {
                    match read_wish(request, name) {
                        Some(false) => {}
                        Some(true) => set(core, slot),
                        None => {
                            let text = format!("{name} is true or false");
                            return Admission::Refuse(Refusal::json(400, "invalid_request", &text));
                        }
                    }
                }
                self.identify(core, slot, request, account)
            }
            Door::Stream(program) => {
                Self::make_readable(core, slot, request, &account);
                if let Some(answer) = streams::answer_at_once(request) {
                    return Admission::Refuse(answer);
                }
                match self.identify(core, slot, request, account) {
                    Admission::Accept => self.begin_stream(core, slot, request, program),
                    other => other,
                }
            }
        }
    }

    /// Determines the principal; the application is asked about an unknown token.
    fn identify(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        request: &Request,
        account: Arc<Account>,
    ) -> Admission {
        let name = account.name.clone();
        core.client(slot).account = Some(account);
        let token = match find_token(request) {
            Token::None => return Admission::Accept,
            Token::Malformed => return Admission::Refuse(bad_token()),
            Token::Given(token) => token,
        };
        let session = self.hub.grants.find(&name, &token, core.shared.wall_ms());
        if session.is_some_and(|session| Self::attach(core, slot, session)) {
            return Admission::Accept;
        }
        core.weigh(slot);
        if core.is_crowded() {
            return Admission::Refuse(Refusal::no_room(NoRoom::Server));
        }
        let conn = core.id(slot);
        let address = core.address(slot).to_string();
        if std::mem::replace(&mut core.client(slot).has_asked, true) {
            return Admission::Refuse(bad_token());
        }
        let upcall = Upcall::Authenticate {
            conn,
            account: name,
            token,
            address,
        };
        if self.hub.upcalls.ask(upcall) {
            return Admission::Wait;
        }
        let refusal = Refusal::json(503, "unavailable", "too many handshakes are waiting");
        Admission::Refuse(refusal.with_header("Retry-After", "2"))
    }
}

fn find_door(request: &Request) -> Result<Door, Refusal> {
    if let Some(program) = streams::find_program(request) {
        return Ok(Door::Stream(program));
    }
    if request.path != PATH {
        let nothing = Refusal::json(404, "not_found", "there is nothing at this path");
        return Err(nothing);
    }
    if !request.upgrade {
        let refusal = Refusal::json(
            426,
            "upgrade_required",
            "this path accepts WebSocket connections only",
        );
        return Err(refusal.with_header("Upgrade", "websocket"));
    }
    Ok(Door::WebSocket)
}

/// Whether a client wishes for something; None when it says neither yes nor no.
fn read_wish(request: &Request, name: &str) -> Option<bool> {
    match request.query_value(name).as_deref() {
        None | Some("false") => Some(false),
        Some("true") => Some(true),
        Some(_) => None,
    }
}

enum Token {
    None,
    Malformed,
    Given(String),
}

/// The token of a handshake; the header takes precedence over the query.
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
    unauthorized("the access token is not valid")
}
