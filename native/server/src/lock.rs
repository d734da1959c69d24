//! A mutex that survives a panic of its holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A short lock. The data is consistent between statements, so the panic of a holder does not corrupt it.
#[derive(Debug, Default)]
pub struct Lock<T> {
    mutex: Mutex<T>,
    #[cfg(feature = "tsan")]
    handover: watched::Handover,
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            #[cfg(feature = "tsan")]
            handover: watched::Handover::new(),
        }
    }

    /// Waits for the lock; not to be held across I/O.
    #[cfg(not(feature = "tsan"))]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait()
    }

    /// Waits for the lock in a way that ThreadSanitizer can see.
    #[cfg(feature = "tsan")]
    pub fn lock(&self) -> watched::Guard<'_, T> {
        watched::Guard::new(self.wait(), &self.handover)
    }

    /// Whether the lock is free.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.mutex.try_lock().is_ok()
    }

    fn wait(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// ThreadSanitizer does not see the locks of a standard library that was built without it, but it sees our own atomics:
/// each holder writes a mark that the next one reads.
#[cfg(feature = "tsan")]
mod watched {
    use std::ops::{Deref, DerefMut};
    use std::sync::MutexGuard;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug, Default)]
    pub struct Handover(AtomicU32);

    impl Handover {
        pub const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    pub struct Guard<'a, T> {
        guard: MutexGuard<'a, T>,
        handover: &'a Handover,
    }

    impl<'a, T> Guard<'a, T> {
        pub fn new(guard: MutexGuard<'a, T>, handover: &'a Handover) -> Self {
            handover.0.load(Ordering::Acquire);
            Self { guard, handover }
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.handover.0.fetch_add(1, Ordering::Release);
        }
    }
}
