//! What the programs of the bench share: clocks, and the fields of a measured message.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// CPU seconds, user and system, that this process has used.
#[must_use]
#[allow(dead_code, reason = "not every program reports its own")]
pub fn cpu_s() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for the first 104 days")]
    let ns = read_ns(ClockId::ProcessCPUTime) as f64;
    ns / 1e9
}

fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let (seconds, rest) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}

/// The unsigned number behind the first `"name":` in JSON text.
#[must_use]
#[allow(dead_code, reason = "the floor only writes")]
pub fn number_after(text: &str, name: &str) -> Option<u64> {
    let digits = &text[text.find(name)? + name.len()..];
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}
