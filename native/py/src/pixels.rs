//! The function `resize_pixels`.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pyfunction]
pub fn resize_pixels<'py>(
    py: Python<'py>,
    pixels: &[u8],
    bands: usize,
    size: (u32, u32),
    part: (f64, f64),
    target: (u32, u32),
) -> PyResult<Bound<'py, PyBytes>> {
    let made = py
        .detach(|| resize(pixels, bands, size, part, target))
        .map_err(PyValueError::new_err)?;
    Ok(PyBytes::new(py, &made))
}

fn resize(
    pixels: &[u8],
    bands: usize,
    size: (u32, u32),
    part: (f64, f64),
    target: (u32, u32),
) -> Result<Vec<u8>, String> {
    let kind = match bands {
        1 => PixelType::U8,
        3 => PixelType::U8x3,
        _ => return Err("bands must be 1 or 3".into()),
    };
    // The filter would take the whole for a part that is not a number, and makes nothing of nothing.
    if !(part.0 > 0.0 && part.1 > 0.0 && target.0 > 0 && target.1 > 0) {
        return Err("part and target must not be empty".into());
    }
    let source =
        ImageRef::new(size.0, size.1, pixels, kind).map_err(|error| format!("pixels: {error}"))?;
    let mut made = Image::new(target.0, target.1, kind);
    let filter = ResizeAlg::Convolution(FilterType::Lanczos3);
    let options = ResizeOptions::new()
        .resize_alg(filter)
        .crop(0.0, 0.0, part.0, part.1);
    Resizer::new()
        .resize(&source, &mut made, &options)
        .map_err(|error| format!("part: {error}"))?;
    Ok(made.into_vec())
}
