//! How late well-behaved viewers get their messages while others attack.
//!
//! `hostile [RUNS] [SECONDS] [ATTACK …]` runs a gateway of one event loop, 200 viewers of one program at 100 messages a
//! second, and each attack in turn, always after a quiet spell of the same length; a row has the medians of the runs,
//! and how much of a core the gateway used, which tells that an attack did strike, what memory and how many connections
//! it held at most, and how many it was refused.
//!
//! The gateway has core 0. Viewers and attackers are processes on core 1. What is measured is what an attack makes of the
//! gateway, not that attackers need a core as well, nor what else runs on the machine: gateway and viewers are scheduled
//! in real time, which only root may ask for, and everything else takes what they leave.

mod attacks;
mod viewers;

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use broker_core::log::Kind;
use broker_gateway::{Answer, Gateway, Hub, OwnedEntry, Server, Upcall};
use broker_server::Config;

#[path = "../bench_support/mod.rs"]
mod bench_support;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The attacks come from one address, which has this share.
const CONNECTIONS_PER_ADDRESS: usize = 5_000;
const CORE_OF_GATEWAY: &str = "0";
const CORE_OF_CLIENTS: &str = "1";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["view", port] => viewers::run(port.parse()?),
        ["attack", port, name, process] => attacks::run(port.parse()?, name, process.parse()?),
        [] => compare(3, 3, &[]),
        [runs] => compare(runs.parse()?, 3, &[]),
        [runs, seconds, ref attacks @ ..] => compare(runs.parse()?, seconds.parse()?, attacks),
    }
}

/// A spell: p50 and p99 of the viewers in milliseconds, and the share of a core that the gateway used.
#[derive(Clone, Copy)]
struct Spell {
    p50_ms: f64,
    p99_ms: f64,
    cpu_share: f64,
}

fn compare(runs: usize, seconds: u64, only: &[&str]) -> Outcome<()> {
    take_the_core()?;
    let server = Server::new(Config {
        loops: 1,
        connections_per_address: CONNECTIONS_PER_ADDRESS,
        ..Config::default()
    })?;
    let hub = Arc::new(Hub::new(Arc::clone(server.shared()))?);
    let accounts = HashMap::from([("main".to_owned(), None)]);
    hub.set_accounts("localhost", "main", accounts);
    hub.open_log(viewers::TOPIC, "e", 0, true);
    let port = Gateway::start(&server, &hub)?;
    go_before_the_loop()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let publisher = publish(Arc::clone(&hub), Arc::clone(&is_over));
    let mut viewers = Viewers::start(port)?;
    println!(
        "{:<14}{:>10}{:>10}{:>12}{:>12}{:>8}{:>8}{:>8}{:>12}{:>13}{:>10}",
        "attack",
        "quiet p50",
        "under it",
        "quiet p99",
        "under it",
        "ratio",
        "CPU",
        "quiet",
        "held, MiB",
        "connections",
        "refused"
    );
    for name in attacks::NAMES
        .iter()
        .filter(|name| only.is_empty() || only.contains(name))
    {
        let (mut quiet, mut attacked, mut held_bytes) = (Vec::new(), Vec::new(), 0);
        let (mut connections, mut refused) = (0, 0);
        for _ in 0..runs {
            quiet.push(viewers.measure(seconds)?);
            let (before_bytes, shared) = (resident_bytes(), server.shared());
            let before_refused = shared.counters.refused.load(Ordering::Relaxed);
            let mut children = (0..attacks::processes(name))
                .map(|process| {
                    let (port, process) = (port.to_string(), process.to_string());
                    spawn(
                        &["attack", &port, name, &process],
                        &["chrt", "--other", "0"],
                    )
                })
                .collect::<Outcome<Vec<_>>>()?;
            thread::sleep(attacks::warm_up(name));
            attacked.push(viewers.measure(seconds)?);
            held_bytes = held_bytes.max(resident_bytes().saturating_sub(before_bytes));
            let count = shared.connections.load(Ordering::Relaxed);
            connections = connections.max(count.saturating_sub(viewers::VIEWERS));
            let count = shared.counters.refused.load(Ordering::Relaxed);
            refused = refused.max(count - before_refused);
            for child in &mut children {
                child.kill()?;
                child.wait()?;
            }
            wait_until_gone(&server);
        }
        let (quiet, attacked) = (median(&quiet), median(&attacked));
        let (ratio, held_mib) = (attacked.p99_ms / quiet.p99_ms, held_bytes >> 20);
        println!(
            "{name:<14}{:>7.2} ms{:>7.2} ms{:>9.2} ms{:>9.2} ms{ratio:>8.2}{:>8.2}{:>8.2}{held_mib:>12}{connections:>13}{refused:>10}",
            quiet.p50_ms,
            attacked.p50_ms,
            quiet.p99_ms,
            attacked.p99_ms,
            attacked.cpu_share,
            quiet.cpu_share,
        );
    }
    drop(viewers);
    is_over.store(true, Ordering::Release);
    let _ = publisher.join();
    Ok(())
}

/// Pins this process to its core, and has it and its children scheduled in real time.
fn take_the_core() -> Outcome<()> {
    let pid = std::process::id().to_string();
    run("taskset", &["-cp", CORE_OF_GATEWAY, &pid])?;
    run("chrt", &["--fifo", "-p", "1", &pid])
}

/// Has this thread scheduled before the loop, which may never have nothing to do.
fn go_before_the_loop() -> Outcome<()> {
    let this = std::fs::read_link("/proc/thread-self")?;
    let tid = this.file_name().ok_or("no thread")?.to_string_lossy();
    run("chrt", &["--fifo", "-p", "2", &tid])
}

fn run(program: &str, arguments: &[&str]) -> Outcome<()> {
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{program} {arguments:?} failed").into())
    }
}

/// 100 messages a second, and an application that answers whatever it is asked.
fn publish(hub: Arc<Hub>, is_over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        go_before_the_loop().expect("as allowed as before");
        let began = Instant::now();
        for seq in 1u64.. {
            if is_over.load(Ordering::Acquire) {
                return;
            }
            for upcall in hub.upcalls.take(1_000) {
                if let Upcall::Call { conn, ticket, .. } = upcall {
                    hub.reply(conn, ticket, Answer::Error, b"{}".to_vec());
                }
            }
            let due = began + Duration::from_millis(10 * seq);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let pad = "x".repeat(200);
            let sent = bench_support::monotonic_ns();
            let entry = OwnedEntry {
                kind: Kind::Push,
                epoch: "e".to_owned(),
                seq,
                method: "event".to_owned(),
                params: format!(r#"{{"seq":{seq},"sent":{sent},"pad":"{pad}"}}"#).into_bytes(),
            };
            if hub.append(viewers::TOPIC, &[entry]).is_err() {
                return;
            }
        }
    })
}

/// The process of the viewers.
struct Viewers {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Viewers {
    fn start(port: u16) -> Outcome<Self> {
        let mut child = spawn(&["view", &port.to_string()], &[])?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut viewers = Self { child, output };
        viewers.receive()?;
        Ok(viewers)
    }

    fn measure(&mut self, seconds: u64) -> Outcome<Spell> {
        let (began, before_s) = (Instant::now(), bench_support::cpu_s());
        let input = self.child.stdin.as_mut().ok_or("no pipe")?;
        writeln!(input, "{seconds}")?;
        input.flush()?;
        let line = self.receive()?;
        let mut figures = line.split_whitespace().map(str::parse::<f64>);
        let mut next = || figures.next().ok_or("a figure is missing");
        Ok(Spell {
            p50_ms: next()??,
            p99_ms: next()??,
            cpu_share: (bench_support::cpu_s() - before_s) / began.elapsed().as_secs_f64(),
        })
    }

    fn receive(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the viewers have gone".into());
        }
        Ok(line)
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another process of this program on the core of the clients, by way of `wrapper`.
fn spawn(arguments: &[&str], wrapper: &[&str]) -> Outcome<Child> {
    let child = Command::new("taskset")
        .args(["-c", CORE_OF_CLIENTS])
        .args(wrapper)
        .arg(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(child)
}

fn wait_until_gone(server: &Server) {
    while server.shared().connections.load(Ordering::Relaxed) > viewers::VIEWERS {
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(300));
}

fn median(all: &[Spell]) -> Spell {
    let middle = |figure: fn(&Spell) -> f64| {
        let mut figures: Vec<f64> = all.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Spell {
        p50_ms: middle(|spell| spell.p50_ms),
        p99_ms: middle(|spell| spell.p99_ms),
        cpu_share: middle(|spell| spell.cpu_share),
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * 4_096)
}
