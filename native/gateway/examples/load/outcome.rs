//! The result of whatever may fail here.

use std::error::Error;

pub type Outcome<T> = Result<T, Box<dyn Error>>;
