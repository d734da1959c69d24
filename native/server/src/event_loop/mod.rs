//! The event loop.
//!
//! One turn: wait for sockets and commands; read and handle input; take commands; send replies; broadcast new entries
//! of logs. Each step has a time limit and continues in the next turn. While a broadcast is pending, the limits of the
//! other steps are short, but always a share of what the broadcast took in the previous turn. So an overloaded loop
//! continues to read from its clients and to accept new ones, while new entries accumulate in the logs.

mod drain;
mod intake;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use broker_core::protocol::Inflater;

use self::drain::Drain;
use super::connection::{SHARE_BYTES, State};
use super::handler::Handler;
use super::ids::{ConnId, SlotIndex};
use super::loop_state::Core;
use super::mailbox::Command;
use super::refusals::Refusal;
use super::sys::Ready;
use super::tick::Tick;
use super::wheel::TICK_MS;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// The size of one read; also the most that a client can send in one turn before its pause is checked.
const READ_BYTES: usize = 64 << 10;
/// How long a loop without connections sleeps: the handler's upkeep is its only work.
const REST_MS: u64 = 1_000;

/// How long one step of a turn may take. Longer work for one client is spread over turns, so that it does not delay the
/// pushes to others.
#[derive(Clone, Copy)]
struct Patience {
    most: Duration,
    /// The limit while a broadcast is pending …
    with_news: Duration,
    /// … or this part of what the broadcast took in the previous turn, if that is longer. Reading a pong costs about as
    /// much as sending a frame, and a client that receives many frames sends one pong in half a minute: an eighth is
    /// plenty.
    share: u32,
}

/// Applies separately to accepting connections, to reading messages, and to sending to single connections.
const PATIENCE: Patience = Patience {
    most: Duration::from_millis(1),
    with_news: Duration::from_micros(250),
    share: 8,
};

/// How long a turn broadcasts before it reads input; a slice that has begun is finished.
const BROADCAST: Duration = Duration::from_millis(2);

/// One event loop with its application.
pub(super) struct EventLoop<H: Handler> {
    core: Core<H>,
    handler: H,
    listener: Option<OwnedFd>,
    /// False while the listener is not watched because the descriptors have run out.
    is_accepting: bool,
    inflater: Inflater,
    buffer: Vec<u8>,
    /// What was read, decrypted.
    plain: Vec<u8>,
    due: Vec<(u64, SlotIndex)>,
    next_tick_ms: u64,
    /// When this turn began to read input.
    intake: Instant,
    /// The scratch span for sending to single connections.
    patience: Patience,
    /// The scratch span for broadcasts.
    broadcast: Duration,
    drain: Option<Drain>,
}

impl<H: Handler> EventLoop<H> {
    /// # Errors
    /// When the kernel refuses a watch.
    pub fn new(core: Core<H>, handler: H, listener: OwnedFd) -> std::io::Result<Self> {
        core.poll.add_source(&listener, LISTENER, false)?;
        core.poll
            .add_source(core.shared.mailboxes[core.index].wake(), WAKE, true)?;
        let next_tick_ms = core.now_ms + TICK_MS;
        Ok(Self {
            core,
            handler,
            listener: Some(listener),
            is_accepting: true,
            inflater: Inflater::new(),
            buffer: vec![0; READ_BYTES],
            plain: Vec::new(),
            due: Vec::new(),
            next_tick_ms,
            intake: Instant::now(),
            patience: PATIENCE,
            broadcast: BROADCAST,
            drain: None,
        })
    }

    /// Runs until it is told to stop; then every connection is closed.
    pub fn run(&mut self) {
        let (mut ready, mut commands) = (Vec::new(), Vec::new());
        while self.turn(&mut ready, &mut commands) {}
        self.stop();
    }

    fn turn(&mut self, ready: &mut Vec<Ready>, commands: &mut Vec<Command<H::Command>>) -> bool {
        let is_busy = !(self.core.touched.is_empty()
            && self.core.unread.is_empty()
            && self.core.grown.is_empty());
        let timeout = if is_busy {
            0
        } else if self.is_at_rest() {
            REST_MS
        } else {
            let next_ms = self.next_tick_ms.min(self.core.held_until_ms);
            next_ms.saturating_sub(self.core.now_ms)
        };
        self.core.poll.wait(timeout, ready);
        self.core.now_ms = self.core.shared.now_ms();
        self.intake = Instant::now();
        for event in ready.drain(..) {
            self.event(event);
        }
        // A limit of its own: new connections must not delay the input of existing ones.
        self.intake = Instant::now();
        self.read_waiting();
        self.core.shared.mailboxes[self.core.index].take(commands);
        for command in commands.drain(..) {
            if !self.command(command) {
                return false;
            }
        }
        self.core.end_holding();
        self.flush();
        self.broadcast();
        self.flush();
        if self.core.now_ms >= self.next_tick_ms {
            self.tick();
        }
        true
    }

    /// Whether there is no connection whose time could be over.
    fn is_at_rest(&self) -> bool {
        self.core.connections.is_empty() && self.is_accepting && self.drain.is_none()
    }

    /// Whether this turn's time for input is over.
    fn is_late(&self) -> bool {
        is_late(&self.core, self.intake)
    }

    /// Sends to the connections with output, until the time is over; the others come first next time.
    fn flush(&mut self) {
        let began = Instant::now();
        while let Some(slot) = self.core.touched.pop_front() {
            self.core.connection(slot).queued.to_flush = false;
            self.core.flush(slot, SHARE_BYTES);
            let (patience, core) = (self.patience, &self.core);
            if patience.is_over(began.elapsed(), core.share, || core.has_news()) {
                return;
            }
        }
    }

    /// Broadcasts slice by slice, until the time is over; the topic that has waited longest comes first next time.
    fn broadcast(&mut self) {
        let began = Instant::now();
        while !self.core.grown.is_empty() {
            self.core.broadcast_slice();
            if began.elapsed() >= self.broadcast {
                break;
            }
        }
        self.core.share = began.elapsed() / self.patience.share;
    }

    fn event(&mut self, event: Ready) {
        match event.token {
            LISTENER => self.accept(),
            WAKE => {}
            token => {
                let Some(slot) = self.core.connections.find(ConnId(token)) else {
                    return;
                };
                if event.writable && self.core.connection(slot).writing.is_blocked {
                    self.core.connection(slot).writing.is_blocked = false;
                    self.core.touch(slot);
                }
                if event.hung_up && self.core.connection(slot).state == State::Waiting {
                    self.core.drop_connection(slot);
                } else if event.readable || event.hung_up {
                    let connection = self.core.connection(slot);
                    connection.reading.has_more = true;
                    connection.reading.is_ended |= event.hung_up;
                    self.core.read_later(slot);
                }
            }
        }
    }

    fn command(&mut self, command: Command<H::Command>) -> bool {
        match command {
            Command::Stop => return false,
            Command::Probe => {
                let shared = &self.core.shared;
                shared.probes[self.core.index].answer(shared.now_us());
            }
            Command::Log(number) => {
                if let Some(place) = self.core.topics.find(number) {
                    self.core.note_growth(place);
                }
            }
            Command::Drain(over_ms) => self.begin_drain(over_ms),
            Command::Refuse(id, refusal) => {
                if let Some(slot) = self.core.find_waiting(id) {
                    self.core.refuse(slot, &refusal);
                }
            }
            Command::Resume(id) => {
                if let Some(slot) = self.core.find_waiting(id) {
                    self.resume(slot);
                }
            }
            Command::Handler(command) => {
                self.handler.command(&mut self.core, command);
                while let Some(slot) = self.core.resumed.pop() {
                    self.resume(slot);
                }
            }
        }
        true
    }

    fn tick(&mut self) {
        let now_ms = self.core.now_ms;
        self.next_tick_ms = now_ms + TICK_MS;
        let mut due = std::mem::take(&mut self.due);
        self.core.wheel.take(now_ms, &mut due);
        for (tick, slot) in due.drain(..) {
            let connection = self.core.connection(slot);
            if connection.state == State::Free || connection.deadlines.timer != Tick::of_tick(tick)
            {
                continue;
            }
            connection.deadlines.timer = Tick::NEVER;
            self.timer(slot);
            self.core.schedule(slot);
        }
        self.due = due;
        self.core.check_lag();
        self.handler.tick(&mut self.core);
        self.continue_drain();
        if !self.is_accepting {
            self.is_accepting = true;
            if let Some(listener) = &self.listener {
                self.is_accepting = self.core.poll.add_source(listener, LISTENER, false).is_ok();
            }
        }
        self.flush();
    }

    fn timer(&mut self, slot: SlotIndex) {
        let now_ms = self.core.now_ms;
        self.put_off(slot);
        let connection = self.core.connection(slot);
        if connection.deadlines.end.is_over(now_ms) {
            self.end(slot);
            return;
        }
        if connection.deadlines.message.is_over(now_ms) {
            self.core.close(slot, 1008, "the message took too long");
            return;
        }
        if connection.deadlines.pong.is_over(now_ms) {
            // The client is gone and cannot read a close frame: send it once and remove the connection.
            self.core.close(slot, 1011, "no pong");
            self.core.flush(slot, usize::MAX);
            self.core.drop_connection(slot);
            return;
        }
        if connection.deadlines.ping.is_over(now_ms) {
            self.ping(slot);
        }
        self.core.show_life(slot);
        let connection = self.core.connection(slot);
        if connection.deadlines.alarm.is_over(now_ms) {
            connection.deadlines.alarm = Tick::NEVER;
            self.handler.alarm(&mut self.core, slot);
        }
    }

    /// Restarts the deadlines for input, when the client has sent something that we have not processed.
    fn put_off(&mut self, slot: SlotIndex) {
        let (now_ms, config) = (self.core.now_ms, &self.core.shared.config);
        let pong = Tick::at_ms(now_ms + config.pong_ms);
        let message = Tick::at_ms(now_ms + config.message_ms);
        let handshake = Tick::at_ms(now_ms + config.handshake_ms);
        let connection = self.core.connection(slot);
        if !connection.is_unread() {
            return;
        }
        if connection.deadlines.pong.is_over(now_ms) {
            connection.deadlines.pong = pong;
        }
        if connection.deadlines.message.is_over(now_ms) {
            connection.deadlines.message = message;
        }
        if connection.state == State::Head && connection.deadlines.end.is_over(now_ms) {
            connection.deadlines.end = handshake;
        }
    }

    fn ping(&mut self, slot: SlotIndex) {
        let (now_ms, config) = (self.core.now_ms, &self.core.shared.config);
        let (interval_ms, timeout_ms) = (config.ping_ms, config.pong_ms);
        let connection = self.core.connection(slot);
        connection.deadlines.ping = Tick::at_ms(now_ms + interval_ms);
        // A ping would queue behind output that the client has not read yet; the lag policy covers that client.
        if connection.writing.is_blocked
            || !connection.out.bytes.is_empty()
            || connection.deadlines.pong.is_set()
        {
            return;
        }
        if connection.transport.is_answered() {
            connection.deadlines.pong = Tick::at_ms(now_ms + timeout_ms);
        }
        self.core.send_heartbeat(slot);
    }

    /// The deadline `end` of a connection has passed.
    fn end(&mut self, slot: SlotIndex) {
        let connection = self.core.connection(slot);
        match connection.state {
            // A proxy has not said whom an answer would be for.
            State::Head if connection.awaits_proxy() => self.drop_unnamed(slot),
            State::Head | State::Waiting => {
                self.core.refuse(
                    slot,
                    &Refusal::json(408, "request_timeout", "the handshake took too long"),
                );
            }
            State::Open => self.end_drained(slot),
            State::Closing | State::Free => self.core.drop_connection(slot),
        }
    }

    /// Stops accepting, and drops every connection without a close frame.
    pub fn abandon(&mut self) {
        self.listener = None;
        for slot in self.core.connections.slots() {
            self.core.drop_connection(slot);
        }
    }

    fn stop(&mut self) {
        for slot in self.core.connections.slots() {
            self.core.close(slot, 1001, "going_away");
            self.core.flush(slot, usize::MAX);
            self.core.drop_connection(slot);
        }
    }
}

/// Whether reading input since `intake` has taken so long that sending must go on.
fn is_late<H: Handler>(core: &Core<H>, intake: Instant) -> bool {
    PATIENCE.is_over(intake.elapsed(), core.share, || core.has_news())
}

impl Patience {
    fn is_over(self, spent: Duration, share: Duration, has_news: impl FnOnce() -> bool) -> bool {
        spent >= share && (spent >= self.most || (spent >= self.with_news && has_news()))
    }
}

#[cfg(test)]
mod alive_test;
#[cfg(test)]
mod application_test;
#[cfg(test)]
mod deadlines_test;
#[cfg(test)]
mod joined_test;
#[cfg(test)]
mod shares_test;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_ends_sooner_when_something_waits_to_be_broadcast() {
        let before = |time: Duration| time.saturating_sub(Duration::from_nanos(1));
        for (spent, without, with) in [
            (Duration::ZERO, false, false),
            (before(PATIENCE.with_news), false, false),
            (PATIENCE.with_news, false, true),
            (before(PATIENCE.most), false, true),
            (PATIENCE.most, true, true),
        ] {
            let is_over = |has_news| PATIENCE.is_over(spent, Duration::ZERO, || has_news);
            assert_eq!(
                (is_over(false), is_over(true)),
                (without, with),
                "{spent:?}"
            );
        }
    }

    #[test]
    fn a_thing_has_its_share_of_what_the_broadcast_took() {
        let share = Duration::from_millis(50);
        assert!(!PATIENCE.is_over(share / 2, share, || true));
        assert!(PATIENCE.is_over(share, share, || true));
    }
}
