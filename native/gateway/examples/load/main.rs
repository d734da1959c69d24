//! The load client of the bench: many viewers in one thread, which count, check and time what they get.
//!
//! `load ADDRESS --connections N [--protocol P] [--host H] [--path P] [--subscribe PARAMS] [--programs K]
//! [--sources S] [--first-source F] [--deflate-every D]`
//!
//! Opens N connections from S loopback addresses and subscribes each in the way of the server's protocol. When all are
//! ready it prints a line of JSON; from then on it answers commands on standard input, each with a line:
//!
//! * `expect M SECONDS`: answered at once with `{"phase":"expecting"}`, and when each viewer has had M more messages
//!   or the time is over, with what was delivered, lost, doubled, how late it came, and how late the client was itself;
//! * `cut`: resets all connections;
//! * `reconnect M SECONDS`: opens them again, each recovering from where it was; answered when all are ready, as at the
//!   start, and when each has had M messages, as `expect`;
//! * `stall K`: each K-th viewer reads no more, and later rounds do not expect it to;
//! * `resume SECONDS`: those read again until the server has closed them, or the time is over;
//! * end of input: ends the program.
//!
//! A message is `…"seq":N…"sent":T…`; `seq` must grow by one on each connection, `sent` is the nanosecond of the
//! monotonic clock at which it was published.

#[path = "../bench_support/mod.rs"]
mod bench_support;
mod commands;
mod crowd;
mod event_stream;
mod lines;
mod options;
mod outcome;
mod own_lag;
mod round;
mod viewer;

use crowd::Crowd;
use options::Options;
use outcome::Outcome;

fn main() -> Outcome<()> {
    let mut crowd = Crowd::new(Options::parse(std::env::args().skip(1))?)?;
    crowd.connect()?;
    commands::serve(&mut crowd)
}
