//! A timer wheel: cheap timers of 100 ms precision.

/// One slot of the wheel. Coarse on purpose: pings and timeouts are seconds.
pub const TICK_MS: u64 = 100;
/// 512 slots of 100 ms: the ping interval fits in one revolution; later deadlines are checked again after each
/// revolution.
const SLOTS: usize = 512;

/// Timers that name a connection's slot. A changed deadline leaves a stale entry behind; the caller that takes due
/// entries compares them with the connection's own deadline.
#[derive(Debug)]
pub struct Wheel {
    slots: Vec<Vec<u32>>,
    /// The next tick to process.
    tick: u64,
}

impl Wheel {
    /// A wheel that begins at `now_ms`.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self {
            slots: vec![Vec::new(); SLOTS],
            tick: now_ms / TICK_MS,
        }
    }

    /// Sets a timer and returns the tick at which it will be taken: that of the deadline, or an earlier one if the
    /// deadline is more than one revolution away.
    pub fn set(&mut self, deadline_ms: u64, slot: u32) -> u64 {
        let latest = self.tick + SLOTS as u64 - 1;
        let tick = deadline_ms.div_ceil(TICK_MS).clamp(self.tick, latest);
        self.slots[Self::at(tick)].push(slot);
        tick
    }

    /// Moves the entries that are due at `now_ms` into `due`, each with its tick.
    pub fn take(&mut self, now_ms: u64, due: &mut Vec<(u64, u32)>) {
        while self.tick <= now_ms / TICK_MS {
            let tick = self.tick;
            let slot = &mut self.slots[Self::at(tick)];
            due.extend(slot.drain(..).map(|entry| (tick, entry)));
            slot.shrink_to(64);
            self.tick += 1;
        }
    }

    fn at(tick: u64) -> usize {
        usize::try_from(tick % SLOTS as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_due_at_its_deadline_and_not_before() {
        let mut wheel = Wheel::new(1_000);
        let tick = wheel.set(1_450, 7);
        let mut due = Vec::new();
        wheel.take(1_449, &mut due);
        assert!(due.is_empty());
        wheel.take(1_500, &mut due);
        assert_eq!(due, [(tick, 7)]);
    }

    #[test]
    fn a_late_deadline_comes_up_after_a_turn() {
        let mut wheel = Wheel::new(0);
        wheel.set(10_000_000, 1);
        let mut due = Vec::new();
        wheel.take(60_000, &mut due);
        assert_eq!(due.len(), 1);
    }

    #[test]
    fn a_deadline_in_the_past_is_due_at_once() {
        let mut wheel = Wheel::new(5_000);
        wheel.set(10, 3);
        let mut due = Vec::new();
        wheel.take(5_000, &mut due);
        assert_eq!(due.len(), 1);
    }
}
