//! Times of an event loop's timers.

use super::wheel::TICK_MS;

/// A time that is never reached.
pub(super) const NEVER: u64 = u64::MAX;

/// A time of the loop's clock in ticks of its wheel, which is no more precise; half the size of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tick(u32);

impl Tick {
    /// A time that is never reached.
    pub const NEVER: Self = Self(u32::MAX);

    /// The first tick at or after `ms`. Times beyond thirteen years become [`NEVER`].
    pub fn at_ms(ms: u64) -> Self {
        Self::of_tick(ms.div_ceil(TICK_MS))
    }

    /// The time of a tick of the wheel.
    pub fn of_tick(tick: u64) -> Self {
        Self(u32::try_from(tick).unwrap_or(u32::MAX))
    }

    /// Its time; [`NEVER`] if it is never reached.
    pub fn ms(self) -> u64 {
        if self.is_set() {
            u64::from(self.0) * TICK_MS
        } else {
            NEVER
        }
    }

    pub fn is_set(self) -> bool {
        self != Self::NEVER
    }

    pub fn is_over(self, now_ms: u64) -> bool {
        self.ms() <= now_ms
    }
}
