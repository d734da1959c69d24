//! The gateway's data of one event loop, and how a gateway is started.

use std::sync::Arc;

use broker_server::StartError;

use super::commands::Command;
use super::hub::Hub;
use super::votes::Names;

/// The state of one event loop, with the gateway's types.
pub type Core = broker_server::Core<Gateway>;
/// A server whose event loops run the gateway.
pub type Server = broker_server::Server<Command>;

/// The application of one event loop: its own state, and the hub, which all loops share. Its methods are spread over
/// files by topic; [`handler`](super::handler) lists them.
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
