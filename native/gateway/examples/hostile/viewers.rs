//! The well-behaved: they follow one program and note when its messages come.

use std::io::{BufRead, Read, Write, stdin, stdout};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::Outcome;
use crate::attacks::{open, text_frame};
use crate::bench_support::{monotonic_ns, number_after};

pub const TOPIC: &str = "main/program/p";
pub const VIEWERS: usize = 200;

/// Connects, says so, and answers each line `SECONDS` with p50 and p99 in milliseconds.
///
/// # Errors
/// Of the sockets.
pub fn run(port: u16) -> Outcome<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"p"}}"#;
    let mut sockets: Vec<TcpStream> = Vec::new();
    for index in 0..VIEWERS {
        let mut socket = open(port, [127, 0, 0, 1], false)?;
        socket.write_all(&text_frame(call))?;
        socket.set_nonblocking(true)?;
        epoll::add(
            &epoll,
            socket.as_fd(),
            EventData::new_u64(index as u64),
            EventFlags::IN,
        )?;
        sockets.push(socket);
    }
    println!("ready");
    stdout().flush()?;
    let (mut events, mut buffer): (Vec<Event>, _) = (Vec::with_capacity(1_024), vec![0; 1 << 16]);
    let (sender, commands) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines() {
            if line.is_err() || sender.send(line.unwrap_or_default()).is_err() {
                return;
            }
        }
    });
    let (mut late_us, mut until): (Vec<u64>, Option<Instant>) = (Vec::new(), None);
    loop {
        if let Ok(line) = commands.try_recv() {
            late_us.clear();
            until = Some(Instant::now() + Duration::from_secs(line.trim().parse()?));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            report(&mut late_us)?;
            until = None;
        }
        events.clear();
        let nap = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&nap),
        )?;
        for event in &events {
            let data = event.data;
            let socket = &mut sockets[usize::try_from(data.u64())?];
            let Ok(got) = socket.read(&mut buffer) else {
                continue;
            };
            if got == 0 {
                return Err("a viewer was closed".into());
            }
            let now_ns = monotonic_ns();
            let text = String::from_utf8_lossy(&buffer[..got]);
            for message in text.split(r#""method":"event""#).skip(1) {
                if let Some(sent_ns) = number_after(message, r#""sent":"#) {
                    late_us.push(now_ns.saturating_sub(sent_ns) / 1_000);
                }
            }
            // An empty ping, before or behind messages: an empty pong, masked. One too many does no harm.
            if buffer[..got].windows(2).any(|pair| pair == [0x89, 0]) {
                socket.write_all(&[0x8a, 0x80, 0, 0, 0, 0])?;
            }
        }
    }
}

fn report(late_us: &mut [u64]) -> Outcome<()> {
    late_us.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "latencies are short")]
    let at = |percent: usize| {
        let index = (late_us.len() * percent / 100).min(late_us.len().saturating_sub(1));
        late_us.get(index).map_or(f64::NAN, |&us| us as f64 / 1e3)
    };
    println!("{:.3} {:.3}", at(50), at(99));
    Ok(stdout().flush()?)
}
