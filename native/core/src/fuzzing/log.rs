//! Logs, driven by bytes.

use crate::log::model::{Model, ROOMY, Step};
use crate::log::{Framing, Limits};

/// Steps at most: comparing takes the square of them.
const STEPS: usize = 64;

/// Whatever happens to a log, it says what its model says.
///
/// The first four bytes choose limits and the size of reads; then each step is a byte for its kind and one for
/// how much.
///
/// # Panics
/// When log and model differ.
pub fn log(input: &[u8]) {
    let [limits, budget, base, often, steps @ ..] = input else {
        return;
    };
    let budget = [1, 200, 1 << 20][usize::from(*budget) % 3];
    let mut model = Model::new(u64::from(*base % 16), read_limits(*limits), budget);
    for (number, pair) in steps.chunks_exact(2).take(STEPS).enumerate() {
        model.apply(&read_step(pair[0], pair[1]));
        if number % (usize::from(*often) + 1) == 0 {
            model.check();
        }
    }
    model.check();
}

fn read_limits(byte: u8) -> Limits {
    let entries = [ROOMY.entries, 1, 3, 10][usize::from(byte & 3)];
    let age_ms = [ROOMY.age_ms, 0, 1_500, 5_000][usize::from(byte >> 2 & 3)];
    let bytes = [ROOMY.bytes, 300, 2_000, 20_000][usize::from(byte >> 4 & 3)];
    Limits {
        entries,
        age_ms,
        bytes,
    }
}

fn read_step(kind: u8, amount: u8) -> Step {
    let params = || format!(r#"{{"x":"{}"}}"#, "y".repeat(usize::from(amount) * 3)).into_bytes();
    let bytes = usize::from(amount);
    let amount = u64::from(amount);
    match kind % 16 {
        0..3 => Step::Push(params()),
        3 | 4 => Step::Tell(kind / 64, bytes),
        5 => Step::Delete(kind / 64),
        6 | 7 => Step::Notice(params()),
        8 => Step::Reset(amount % 20),
        9 | 10 => Step::Backfill(amount % 6),
        11 => Step::Want(read_framing(amount)),
        12 => Step::Unwant(read_framing(amount)),
        13 => Step::Skip(amount % 20 + 1),
        _ => Step::Wait(amount * 20),
    }
}

fn read_framing(amount: u64) -> Framing {
    if amount % 2 == 0 {
        Framing::Deflated
    } else {
        Framing::Events
    }
}
