//! The Python interface of native code: the only crate that names `pyo3`. `_native.pyi` describes it.

mod answers;
mod arguments;
mod gateways;
mod pixels;
mod placeholders;
mod rates;
mod server;
mod stats;
mod strict;
mod votes;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::answers::{Tally, pack_answer, pack_impression, pack_session};
    #[pymodule_export]
    use super::gateways::Gateways;
    #[pymodule_export]
    use super::pixels::resize_pixels;
    #[pymodule_export]
    use super::placeholders::{blur_hash, thumb_hash};
    #[pymodule_export]
    use super::rates::Rates;
    #[pymodule_export]
    use super::server::Server;
    #[pymodule_export]
    use super::strict::{check_json, pass_json};
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    /// The type aliases of the stub, so that they can be imported, and what `build.rs` embeds.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let tuple = module.py().get_type::<PyTuple>();
        let bounds_us = PyTuple::new(module.py(), broker_gateway::DELAY_BOUNDS_US)?;
        module.add("DELAY_BOUNDS_US", bounds_us)?;
        module.add("Entry", &tuple)?;
        module.add("Upcall", &tuple)?;
        module.add("IMAGE_CRATES", env!("IMAGE_CRATES"))?;
        module.add("BUILT_S", env!("BROKER_BUILT_S").parse::<u64>()?)
    }
}
