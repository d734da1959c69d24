//! The Python face of the crate: the only module that names `pyo3`. `_native.pyi` describes it.

mod arguments;
mod server;
mod stats;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::server::Server;
}
