//! The class `Gateways`, and what a server needs to send clients to them.

use std::sync::Arc;

use broker_core::directory::{Listed, Names};
use broker_gateway::{Noted, Replies, Reply};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The gateways that clients are sent to.
#[pyclass(module = "broker._native", frozen)]
pub struct Gateways(Arc<broker_gateway::Gateways>);

impl Gateways {
    pub(super) fn share(&self) -> Arc<broker_gateway::Gateways> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl Gateways {
    #[new]
    #[pyo3(signature = (*, url, public_host, default_account))]
    fn new(url: String, public_host: String, default_account: String) -> Self {
        let names = Names {
            url,
            public_host,
            default_account,
        };
        Self(Arc::new(broker_gateway::Gateways::new(names)))
    }

    fn set(&self, py: Python<'_>, gateways: Vec<(String, String, u64, bool)>) {
        let listed = gateways
            .into_iter()
            .map(|(id, url, connections, is_draining)| Listed {
                id,
                url,
                connections,
                is_draining,
            })
            .collect();
        py.detach(|| self.0.set(listed));
    }

    #[pyo3(signature = (account, program_id = None))]
    fn advise<'py>(
        &self,
        py: Python<'py>,
        account: &str,
        program_id: Option<&str>,
    ) -> (Bound<'py, PyBytes>, Option<String>) {
        let advice = self.0.advise(account, program_id);
        (PyBytes::new(py, &advice.json), advice.stream_url)
    }
}

/// Status, head and body.
pub(super) type GivenReply = (u16, Vec<u8>, Vec<u8>);

/// The responses in the order of the arguments.
pub(super) fn read_replies(given: [GivenReply; 4]) -> Replies {
    let [advice, no_account, not_from_ingress, malformed] =
        given.map(|(status, head, body)| Reply { status, head, body });
    Replies {
        advice,
        no_account,
        not_from_ingress,
        malformed,
    }
}

/// A response as Python logs it.
pub(super) type GivenNote = (u64, String, String, String, u16, u64, usize);

pub(super) fn give_note(noted: Noted) -> GivenNote {
    (
        noted.wall_ms,
        noted.request_id,
        noted.address,
        noted.host,
        noted.status,
        noted.duration_us,
        noted.body_bytes,
    )
}
