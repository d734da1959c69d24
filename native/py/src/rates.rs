//! The class `Rates`.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Token buckets by name.
#[pyclass(module = "broker._native", frozen)]
pub struct Rates(Arc<broker_gateway::Rates>);

impl Rates {
    pub(super) fn share(&self) -> Arc<broker_gateway::Rates> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl Rates {
    #[new]
    fn new(per_s: f64, burst: f64, most: usize) -> PyResult<Self> {
        if per_s >= 0.0 && per_s.is_finite() && burst > 0.0 && burst.is_finite() && most > 0 {
            return Ok(Self(Arc::new(broker_gateway::Rates::new(
                per_s, burst, most,
            ))));
        }
        Err(PyValueError::new_err(
            "per_s must not be negative, burst and most must be above 0",
        ))
    }

    fn take(&self, py: Python<'_>, name: &str, tokens: f64, now_s: f64) -> f64 {
        py.detach(|| self.0.take(name, tokens, now_s))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.len())
    }
}
