//! Which connection follows which log on a loop, and from which position.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::log::Framing;

use super::application::Application;
use super::connection::{BEHIND, Subscription};
use super::ids::SlotIndex;
use super::loop_state::Core;
use super::topics::{Audience, Audiences, Live, SharedLog, Topic};

impl<A: Application> Core<A> {
    /// The number of logs that the connection follows.
    pub fn subscriptions(&mut self, slot: SlotIndex) -> usize {
        self.connections.at(slot).subscriptions.len()
    }

    /// The logs that the connection follows.
    pub fn followed(&mut self, slot: SlotIndex) -> Vec<Arc<SharedLog>> {
        let places: Vec<u32> = self
            .connections
            .at(slot)
            .subscriptions
            .iter()
            .map(|s| s.topic)
            .collect();
        places
            .into_iter()
            .map(|place| Arc::clone(&self.topics.at(place).shared))
            .collect()
    }

    /// The cursor of the connection in a log; None when it does not follow the log.
    pub fn cursor(&mut self, slot: SlotIndex, log: &SharedLog) -> Option<u64> {
        let place = self.topics.find(log.number)?;
        let subscription = self
            .connections
            .at(slot)
            .subscriptions
            .iter()
            .find(|s| s.topic == place)?;
        let (at, cursor) = (subscription.at, subscription.cursor);
        if at == BEHIND {
            return Some(cursor);
        }
        let framing = self.connections.at(slot).framing();
        let audience = &self.topics.at(place).audiences[framing];
        Some(audience.live[at as usize].cursor)
    }

    /// A log that this loop follows, looked up by its number.
    #[must_use]
    pub fn followed_log(&self, number: u64) -> Option<Arc<SharedLog>> {
        let place = self.topics.find(number)?;
        self.topics
            .get(place)
            .map(|topic| Arc::clone(&topic.shared))
    }

    /// The connections that follow a log. Searches all connections, so it is only for rare events.
    pub fn followers(&mut self, number: u64) -> Vec<SlotIndex> {
        let Some(place) = self.topics.find(number) else {
            return Vec::new();
        };
        self.connections
            .slots()
            .filter(|&slot| {
                self.connections
                    .at(slot)
                    .subscriptions
                    .iter()
                    .any(|s| s.topic == place)
            })
            .collect()
    }

    /// Makes the loop follow a log, so that new entries wake it. Every call is paired with one of `subscribe` or
    /// [`release`](Self::release).
    pub fn hold(&mut self, log: &Arc<SharedLog>) -> u32 {
        if let Some(place) = self.topics.find(log.number) {
            return place;
        }
        log.follow(self.index);
        let head = log.log.lock().tip();
        self.topics.add(Topic {
            shared: Arc::clone(log),
            head,
            grown_us: 0,
            audiences: Audiences::default(),
            subscribers: 0,
            is_growing: false,
            is_held: false,
        })
    }

    /// Releases a log that was held without a subscription.
    pub fn release(&mut self, place: u32) {
        if self
            .topics
            .get(place)
            .is_some_and(|topic| topic.subscribers == 0)
        {
            if let Some(topic) = self.topics.remove(place) {
                topic.shared.unfollow(self.index);
            }
        }
    }

    /// Subscribes the connection to a held log from `cursor` on. It must not follow the log already, and the caller has
    /// counted it in the log's `subscribers`.
    pub fn subscribe(&mut self, slot: SlotIndex, place: u32, cursor: u64, recovering: bool) {
        let topic = self.topics.at(place);
        topic.subscribers += 1;
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        // Most connections want plain frames, which need no registration.
        if framing != Framing::Plain {
            topic.shared.log.lock().want(framing);
        }
        connection.subscriptions.reserve_exact(1);
        connection.subscriptions.push(Subscription {
            topic: place,
            at: BEHIND,
            cursor,
            recovering,
        });
        self.shared
            .counters
            .subscriptions
            .fetch_add(1, Ordering::Relaxed);
        if cursor >= self.topics.at(place).head {
            self.join_live(slot, place, cursor);
        } else {
            self.touch(slot);
        }
    }

    /// Ends the connection's subscription to a log; false when there is none.
    pub fn unsubscribe(&mut self, slot: SlotIndex, log: &SharedLog) -> bool {
        let Some(place) = self.topics.find(log.number) else {
            return false;
        };
        let subscriptions = &self.connections.at(slot).subscriptions;
        let Some(at) = subscriptions.iter().position(|s| s.topic == place) else {
            return false;
        };
        self.end_subscription(slot, at);
        true
    }

    pub(super) fn unsubscribe_all(&mut self, slot: SlotIndex) {
        while !self.connections.at(slot).subscriptions.is_empty() {
            self.end_subscription(slot, 0);
        }
    }

    /// Ends the connection's subscription at index `at`.
    pub(super) fn end_subscription(&mut self, slot: SlotIndex, at: usize) {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        let subscription = connection.subscriptions.swap_remove(at);
        let place = subscription.topic;
        if subscription.at != BEHIND {
            let mut audience = std::mem::take(&mut self.topics.at(place).audiences[framing]);
            self.leave_live(place, &mut audience, subscription.at as usize);
            self.topics.at(place).audiences[framing] = audience;
        }
        let now_ms = self.now_ms;
        let topic = self.topics.at(place);
        topic.subscribers -= 1;
        if framing != Framing::Plain {
            topic.shared.log.lock().unwant(framing);
        }
        if topic.shared.subscribers.fetch_sub(1, Ordering::Relaxed) == 1 {
            topic.shared.idle_since_ms.store(now_ms, Ordering::Relaxed);
        }
        self.shared
            .counters
            .subscriptions
            .fetch_sub(1, Ordering::Relaxed);
        self.release(place);
    }

    /// Ends the connection's subscription at index `at`; its log has ended, and the connection has all of it.
    pub(super) fn end_ended(&mut self, slot: SlotIndex, at: usize) {
        self.end_subscription(slot, at);
        self.end_without_subscription(slot, "program_deleted");
    }

    /// Removes the entry `at` from an audience that was taken out of its topic.
    pub(super) fn leave_live(&mut self, place: u32, audience: &mut Audience, at: usize) {
        audience.live.swap_remove(at);
        audience.unmet = audience.unmet.min(audience.live.len());
        self.renumber(place, audience, at);
    }

    /// Stores in the subscriber at `at`, if there is one, its new index.
    pub(super) fn renumber(&mut self, place: u32, audience: &Audience, at: usize) {
        let Some(target) = audience.live.get(at) else {
            return;
        };
        if let Some(subscription) = self.subscription(target.slot, place) {
            subscription.at = u32::try_from(at).unwrap_or(BEHIND);
        }
    }

    /// Removes a live subscriber from its audience, to serve it alone.
    pub(super) fn set_behind(&mut self, slot: SlotIndex, at: usize) {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        let (place, place_live) = {
            let subscription = &connection.subscriptions[at];
            (subscription.topic, subscription.at as usize)
        };
        let mut audience = std::mem::take(&mut self.topics.at(place).audiences[framing]);
        let cursor = audience.live[place_live].cursor;
        self.leave_live(place, &mut audience, place_live);
        self.topics.at(place).audiences[framing] = audience;
        let subscription = &mut self.connections.at(slot).subscriptions[at];
        subscription.at = BEHIND;
        subscription.cursor = cursor;
    }

    pub(super) fn subscription(
        &mut self,
        slot: SlotIndex,
        place: u32,
    ) -> Option<&mut Subscription> {
        self.connections
            .at(slot)
            .subscriptions
            .iter_mut()
            .find(|s| s.topic == place)
    }

    /// Adds a subscriber that has everything before `cursor`, which is not before the head, to the live ones.
    pub(super) fn join_live(&mut self, slot: SlotIndex, place: u32, cursor: u64) {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        let Some(fd) = connection.fd.as_ref().map(AsRawFd::as_raw_fd) else {
            return;
        };
        let live = &mut self.topics.at(place).audiences[framing].live;
        let at = u32::try_from(live.len()).unwrap_or(BEHIND);
        live.push(Live { slot, fd, cursor });
        if let Some(subscription) = self.subscription(slot, place) {
            subscription.at = at;
            subscription.recovering = false;
        }
    }
}
