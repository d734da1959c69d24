//! The gateway's data of one event loop, and how a gateway is started.

use std::sync::Arc;

use broker_server::StartError;

use super::commands::Command;
use super::hub::Hub;
use super::votes::Names;

/// The state of one event loop, as the gateway sees it.
pub type Core = broker_server::Core<Gateway>;
/// A server whose event loops are those of a gateway.
pub type Server = broker_server::Server<Command>;

/// The application of one event loop: what it has to itself, and the hub, which all share. What it does is told in the
/// files that know about it; [`handler`](super::handler) has the list.
#[derive(Debug)]
pub struct Gateway {
    pub(super) hub: Arc<Hub>,
    pub(super) names: Names,
}

impl Gateway {
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            names: Names::default(),
        }
    }

    /// Starts a server with a gateway on each loop, and returns the bound port.
    ///
    /// # Errors
    /// As [`broker_server::Server::start`].
    pub fn start(server: &Server, hub: &Arc<Hub>) -> Result<u16, StartError> {
        let hub = Arc::clone(hub);
        server.start(move |_| Self::new(Arc::clone(&hub)))
    }
}
