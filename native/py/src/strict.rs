//! The functions `check_json` and `pass_json`.

use pyo3::prelude::*;
use pyo3::types::PyList;

use broker_core::protocol::strict::{Kind, Passed, Step, check};

/// The kind of fault and its place.
type Found<'py> = (&'static str, Bound<'py, PyList>);

#[pyfunction]
pub fn check_json<'py>(py: Python<'py>, text: &[u8], depth: usize) -> PyResult<Option<Found<'py>>> {
    let Err(fault) = check(text, depth) else {
        return Ok(None);
    };
    let kind = match fault.kind {
        Kind::Malformed => "malformed",
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
    Ok(Some((kind, place)))
}

#[pyfunction]
#[must_use]
pub fn pass_json(text: &[u8], at: usize, depth: usize, in_string: bool) -> (usize, usize, bool) {
    let passed = Passed {
        at,
        depth,
        in_string,
    };
    let passed = passed.go_on(text);
    (passed.at, passed.depth, passed.in_string)
}
