//! The floors of the bench: the least that a broadcast over `send`, or over `io_uring`, can cost.
//!
//! `floor ADDRESS send|io_uring` accepts viewers and reads nothing from them. The command `publish COUNT BYTES
//! INTERVAL_US` on standard input sends COUNT messages to every connection, one every `INTERVAL_US` microseconds (0: as
//! fast as possible): each is encoded once and written with one send a connection. No queues, no coalescing, no
//! subscriptions: a connection that does not read holds up all. It says when it serves, and answers each command, with
//! a line of JSON.

#[path = "../bench_support/mod.rs"]
mod bench_support;
mod ring;

use std::error::Error;
use std::io::{Read, Write, stdin};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bench_support::monotonic_ns;
use broker_core::protocol::handshake::{self, Head, Limits};
use broker_core::protocol::{Opcode, frame};
use ring::Ring;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

const LISTENER: u64 = u64::MAX;
const COMMANDS: u64 = u64::MAX - 1;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, way] = &arguments[..] else {
        return Err("usage: floor ADDRESS send|io_uring".into());
    };
    let mut ring = match way.as_str() {
        "send" => None,
        "io_uring" => Some(Ring::open()?),
        _ => return Err(format!("unknown way of sending {way:?}").into()),
    };
    let listener = TcpListener::bind(address)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        listener.as_fd(),
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    epoll::add(
        &epoll,
        stdin().as_fd(),
        EventData::new_u64(COMMANDS),
        EventFlags::IN,
    )?;
    println!(r#"{{"version":"Rust's standard library, {way}"}}"#);
    let (mut viewers, mut seq, mut pending): (Vec<Option<TcpStream>>, u64, String) =
        (Vec::new(), 0, String::new());
    let mut events: Vec<Event> = Vec::with_capacity(256);
    loop {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            match event.data.u64() {
                LISTENER => {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    let data = EventData::new_u64(viewers.len() as u64);
                    epoll::add(&epoll, stream.as_fd(), data, EventFlags::IN)?;
                    viewers.push(Some(stream));
                }
                COMMANDS => {
                    let mut bytes = [0; 8192];
                    let count = stdin().lock().read(&mut bytes)?;
                    if count == 0 {
                        return Ok(());
                    }
                    pending.push_str(std::str::from_utf8(&bytes[..count])?);
                    while let Some((line, rest)) = pending.split_once('\n') {
                        publish(line, &viewers, &mut ring, &mut seq)?;
                        pending = rest.to_owned();
                    }
                }
                index => {
                    let place = &mut viewers[usize::try_from(index)?];
                    if !place.as_mut().is_some_and(open) {
                        // Closing the socket takes it out of the poll.
                        *place = None;
                    }
                }
            }
        }
    }
}

/// Answers a handshake; false when the peer has gone. Anything sent later is read and dropped.
fn open(viewer: &mut TcpStream) -> bool {
    let mut head = [0; 4096];
    let count = viewer.read(&mut head).unwrap_or(0);
    // The load client sends its request in one piece, and one piece over loopback arrives as one.
    if let Ok(Head::Complete { request, .. }) = handshake::parse(&head[..count], &Limits::default())
    {
        let mut answer = Vec::new();
        handshake::accept(&request, None, &[], &mut answer);
        return viewer.write_all(&answer).is_ok();
    }
    count > 0
}

/// Runs `publish COUNT BYTES INTERVAL_US`.
fn publish(
    command: &str,
    viewers: &[Option<TcpStream>],
    ring: &mut Option<Ring>,
    seq: &mut u64,
) -> Result<(), Box<dyn Error>> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let &["publish", count, bytes, interval_us] = &words[..] else {
        return Err(format!("unknown command {command:?}").into());
    };
    let (count, bytes): (u32, usize) = (count.parse()?, bytes.parse()?);
    let interval = Duration::from_micros(interval_us.parse()?);
    let (began, began_ns) = (Instant::now(), monotonic_ns());
    let viewers: Vec<&TcpStream> = viewers.iter().flatten().collect();
    let mut out = Vec::new();
    for turn in 0..count {
        let pause = interval * turn;
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
        *seq += 1;
        out.clear();
        let sent_ns = if interval.is_zero() {
            monotonic_ns()
        } else {
            began_ns + u64::try_from(pause.as_nanos())?
        };
        frame::encode(
            Opcode::Text,
            build_message(*seq, bytes, sent_ns).as_bytes(),
            false,
            &mut out,
        );
        if let Some(ring) = ring {
            ring.send_all(&viewers, &out)?;
            continue;
        }
        for viewer in &viewers {
            let mut viewer: &TcpStream = viewer;
            viewer.write_all(&out)?;
        }
    }
    println!(
        r#"{{"published":{count},"seconds":{}}}"#,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A notification as the gateway sends it, filled up to `bytes`.
fn build_message(seq: u64, bytes: usize, sent_ns: u64) -> String {
    let mut text = format!(
        r#"{{"jsonrpc":"2.0","method":"event","params":{{"seq":{seq},"epoch":"bench","programId":"bench","sent":{sent_ns},"filler":""#
    );
    let filler = bytes.saturating_sub(text.len() + 3);
    text.extend(std::iter::repeat_n('x', filler));
    text.push_str("\"}}");
    text
}
