//! The class `Tally`, and the functions that pack records for it.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use broker_core::answers::{self, Applied, Hasher};

/// Inputs above this size are read without the interpreter lock: they take some 100 µs, and releasing the lock and
/// taking it again takes much less.
const ATTACHED_BYTES: usize = 16 << 10;

/// The counts of one shard of a poll.
#[pyclass(module = "broker._native", frozen)]
pub struct Tally(Mutex<answers::Tally>);

/// An invalid argument, as a Python exception.
fn report(fault: impl Display) -> PyErr {
    PyValueError::new_err(fault.to_string())
}

#[pymethods]
impl Tally {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    #[pyo3(signature = (records, *, allow_change))]
    fn apply<'py>(
        &self,
        py: Python<'py>,
        records: &[u8],
        allow_change: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let applied = self.change(py, records.len(), |tally| {
            tally.apply(records, allow_change)
        });
        let Applied { outcomes, news } = applied.map_err(report)?;
        Ok((PyBytes::new(py, &outcomes), PyBytes::new(py, &news)))
    }

    fn load(&self, py: Python<'_>, records: &[u8]) -> PyResult<()> {
        self.change(py, records.len(), |tally| tally.load(records))
            .map_err(report)
    }

    fn totals(&self, py: Python<'_>) -> Vec<u64> {
        self.lock(py).totals().to_vec()
    }

    #[getter]
    fn impressions(&self, py: Python<'_>) -> u64 {
        self.lock(py).impressions()
    }

    #[setter]
    fn set_impressions(&self, py: Python<'_>, impressions: u64) {
        self.lock(py).set_impressions(impressions);
    }

    #[getter]
    fn visitors(&self, py: Python<'_>) -> usize {
        self.lock(py).visitors()
    }

    #[getter]
    fn sessions(&self, py: Python<'_>) -> usize {
        self.lock(py).sessions()
    }

    #[getter]
    fn voters(&self, py: Python<'_>) -> usize {
        self.lock(py).voters()
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> usize {
        self.lock(py).memory_bytes()
    }
}

impl Tally {
    /// Waits without the interpreter lock for the thread that holds the tally.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, answers::Tally> {
        let locked = self.0.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change`, without the interpreter lock if it reads many bytes.
    fn change<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        change: impl FnOnce(&mut answers::Tally) -> T + Send,
    ) -> T {
        if bytes <= ATTACHED_BYTES {
            return change(&mut self.lock(py));
        }
        py.detach(|| change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[pyfunction]
pub fn pack_answer<'py>(
    py: Python<'py>,
    key: &[u8],
    poll: u64,
    visitor: &str,
    indexes: Vec<i64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let indexes = indexes
        .into_iter()
        .map(read_index)
        .collect::<PyResult<Vec<_>>>()?;
    let hash = Hasher::new(read_key(key)?, poll).answer(visitor);
    let mut record = Vec::new();
    answers::encode_answer(&indexes, hash, &mut record).map_err(report)?;
    Ok(PyBytes::new(py, &record))
}

#[pyfunction]
pub fn pack_impression<'py>(
    py: Python<'py>,
    key: &[u8],
    poll: u64,
    visitor: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let hash = Hasher::new(read_key(key)?, poll).impression(visitor);
    let mut record = Vec::new();
    answers::encode_impression(hash, &mut record);
    Ok(PyBytes::new(py, &record))
}

#[pyfunction]
pub fn pack_session<'py>(
    py: Python<'py>,
    key: &[u8],
    poll: u64,
    session: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let hash = Hasher::new(read_key(key)?, poll).session(session);
    let mut record = Vec::new();
    answers::encode_session(hash, &mut record);
    Ok(PyBytes::new(py, &record))
}

fn read_key(key: &[u8]) -> PyResult<&[u8; 16]> {
    key.try_into()
        .map_err(|_| PyValueError::new_err(format!("key must be 16 bytes, not {}", key.len())))
}

/// An index that fits its type; its range is checked when it is encoded.
fn read_index(index: i64) -> PyResult<u16> {
    u16::try_from(index).map_err(|_| {
        let highest = answers::HIGHEST_INDEX;
        PyValueError::new_err(format!("indexes must be 0 to {highest}, not {index}"))
    })
}
