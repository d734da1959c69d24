//! A mutex that outlives a panic of its holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A short lock. What it guards is whole between statements, so the panic of a holder does not spoil it.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock; never across I/O.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
