//! What the bench asks of the viewers.

use std::io::{Read, stdin};
use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use serde_json::json;

use crate::bench_support::cpu_s;
use crate::crowd::{Crowd, print};
use crate::outcome::Outcome;
use crate::round::Round;

const COMMANDS: u64 = u64::MAX;

/// Runs the commands on standard input until it ends.
///
/// # Errors
/// An unknown command, or whatever goes wrong with a viewer.
pub fn serve(crowd: &mut Crowd) -> Outcome<()> {
    let mut input = stdin().lock();
    let data = EventData::new_u64(COMMANDS);
    epoll::add(&crowd.epoll, stdin().as_fd(), data, EventFlags::IN)?;
    let (mut pending, mut stalled_every) = (String::new(), 0);
    loop {
        while !crowd.turn(None)? {}
        let mut bytes = [0; 8192];
        let count = input.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        pending.push_str(std::str::from_utf8(&bytes[..count])?);
        while let Some((line, rest)) = pending.split_once('\n') {
            run(crowd, line, &mut stalled_every)?;
            pending = rest.to_owned();
        }
    }
}

fn run(crowd: &mut Crowd, command: &str, stalled_every: &mut usize) -> Outcome<()> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let began_cpu_s = cpu_s();
    crowd.own_lag.take_us(); // what was before is not of this round
    match words[..] {
        ["expect", messages, seconds] => {
            let readers = crowd.viewers.len() - stalled(crowd, *stalled_every).count();
            crowd.round = Round::new(messages.parse::<u64>()? * readers as u64);
            print(&json!({"phase": "expecting"}))?;
            crowd.wait(seconds.parse()?, Round::is_complete)?;
        }
        ["cut"] => {
            crowd.cut()?;
            return print(&json!({"phase": "cut"}));
        }
        ["reconnect", messages, seconds] => {
            crowd.round = Round::new(messages.parse::<u64>()? * crowd.seqs.len() as u64);
            crowd.connect()?;
            crowd.wait(seconds.parse()?, Round::is_complete)?;
        }
        ["stall", every] => {
            *stalled_every = every.parse()?;
            for index in stalled(crowd, *stalled_every) {
                epoll::delete(&crowd.epoll, crowd.viewers[index].as_fd())?;
            }
            let count = stalled(crowd, *stalled_every).count();
            return print(&json!({"phase": "stalled", "viewers": count}));
        }
        ["resume", seconds] => {
            let waiting = stalled(crowd, *stalled_every).count() as u64;
            crowd.round = Round::new(0);
            for index in stalled(crowd, *stalled_every) {
                crowd.follow(&crowd.viewers[index], index)?;
            }
            *stalled_every = 0;
            crowd.wait(seconds.parse()?, |round| round.closed >= waiting)?;
        }
        _ => return Err(format!("unknown command {command:?}").into()),
    }
    let mut report = crowd.round.report();
    report["cpu_s"] = json!(cpu_s() - began_cpu_s);
    report["own_lag_us"] = json!(crowd.own_lag.take_us());
    crowd.round = Round::default();
    print(&report)
}

/// The viewers that do not read: those with an index that `every` divides; none when it is 0.
fn stalled(crowd: &Crowd, every: usize) -> impl Iterator<Item = usize> + use<> {
    let count = if every == 0 { 0 } else { crowd.viewers.len() };
    (0..count).step_by(every.max(1))
}
