//! The functions `check_json` and `pass_json`.

use pyo3::prelude::*;
use pyo3::types::PyList;

use broker_core::protocol::strict::{Fault, Kind, Step, check, check_value};

/// The kind of fault and its path.
type Found<'py> = (&'static str, Bound<'py, PyList>);

/// The result of `pass_json`.
#[derive(IntoPyObject)]
pub enum Passed<'py> {
    End(usize),
    Fault(Found<'py>),
}

#[pyfunction]
pub fn check_json<'py>(py: Python<'py>, text: &[u8], depth: usize) -> PyResult<Option<Found<'py>>> {
    match check(text, depth) {
        Ok(()) => Ok(None),
        Err(fault) => found(py, &fault).map(Some),
    }
}

#[pyfunction]
pub fn pass_json<'py>(
    py: Python<'py>,
    text: &[u8],
    at: usize,
    depth: usize,
) -> PyResult<Option<Passed<'py>>> {
    match check_value(text, at, depth) {
        Ok(end) => Ok(end.map(Passed::End)),
        Err(fault) => Ok(Some(Passed::Fault(found(py, &fault)?))),
    }
}

fn found<'py>(py: Python<'py>, fault: &Fault<'_>) -> PyResult<Found<'py>> {
    let kind = match fault.kind {
        Kind::Malformed | Kind::Ended => "malformed",
        Kind::Repeated => "repeated",
        Kind::LargeInteger => "large integer",
        Kind::TooDeep => "too deep",
    };
    let place = PyList::empty(py);
    for step in &fault.place {
        match step {
            Step::Name(name) => place.append(name.as_ref())?,
            Step::Index(index) => place.append(index)?,
        }
    }
    Ok((kind, place))
}
