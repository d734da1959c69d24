//! The functions `blur_hash` and `thumb_hash`, what to paint before an image has loaded.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A `ThumbHash` takes no more, and no hash holds more.
const MAX_SIDE_PX: u32 = 100;

#[pyfunction]
pub fn blur_hash(
    py: Python<'_>,
    pixels: &[u8],
    size: (u32, u32),
    components: (u32, u32),
) -> PyResult<String> {
    check(pixels, size)?;
    py.detach(|| blurhash::encode(components.0, components.1, size.0, size.1, pixels))
        .map_err(|error| PyValueError::new_err(format!("components: {error}")))
}

#[pyfunction]
pub fn thumb_hash<'py>(
    py: Python<'py>,
    pixels: &[u8],
    size: (u32, u32),
) -> PyResult<Bound<'py, PyBytes>> {
    check(pixels, size)?;
    let made =
        py.detach(|| thumbhash::rgba_to_thumb_hash(size.0 as usize, size.1 as usize, pixels));
    Ok(PyBytes::new(py, &made))
}

/// The libraries stop the program where these do not fit.
fn check(pixels: &[u8], (width, height): (u32, u32)) -> PyResult<()> {
    let sides = 1..=MAX_SIDE_PX;
    if !sides.contains(&width) || !sides.contains(&height) {
        return Err(PyValueError::new_err(
            "size must be 1 to 100 pixels each way",
        ));
    }
    if pixels.len() != 4 * width as usize * height as usize {
        return Err(PyValueError::new_err(
            "pixels must be four bytes for each pixel",
        ));
    }
    Ok(())
}
