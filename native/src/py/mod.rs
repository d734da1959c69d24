//! The Python face of the crate: the only module that names `pyo3`.

use pyo3::prelude::*;

#[pymodule]
mod _native {}
