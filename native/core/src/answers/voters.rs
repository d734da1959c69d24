//! A compact set of hashes, each with a value, that grows without pauses.
//!
//! Theory of operation. Linear hashing (Litwin, 1980) over segments of some four thousand entries: when the segments
//! are full on average, one more segment is added and takes over half the entries of an earlier one, each in its turn.
//! So the work of one insertion is bounded by the size of a segment, whatever the size of the set.
//!
//! A segment is a table with ordered linear probing (Amble and Knuth, 1974): the keys of the used slots ascend. The
//! home slot of an entry is proportional to its key; the entry is stored there or in the next slot that the entries
//! before it leave free. A segment grows by a tenth when it is nine tenths full, so at least 81 % of the slots are in
//! use: 8 bytes of hash plus a value take at most 1.23 times their size. Growing in such small steps is cheap because
//! the order stays the same: entries are copied one after another, without any lookup. Entries are never removed.
//!
//! The low bits of a hash choose the segment, the high bits the home slot. All hashes of one table share the residue
//! that chose their shard, so they are first mixed by a bijection; the table stores mixed hashes.

use std::{hint, mem};

/// Average number of entries per segment. Redistributing one segment takes some 10 µs.
const SEGMENT: usize = 4_096;

/// Slots of the smallest segment, and the least by which a segment grows.
const LEAST_SLOTS: usize = 8;

/// One slot in this many stays empty, and a segment grows by one slot in this many.
const SPARE: usize = 10;

/// Slots after the last home slot; a segment that needs more gets them then.
const TAIL: usize = 24;

/// The key of an unused slot.
const EMPTY: u64 = u64::MAX;

/// Hashes other than 0, each with a value.
#[derive(Debug)]
pub(super) struct Table<V> {
    segments: Vec<Segment<V>>,
    entries: usize,
}

impl<V: Copy + Default> Table<V> {
    pub fn new() -> Self {
        Self {
            segments: Vec::new(),
            entries: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.entries
    }

    /// Bytes of the heap that the table takes.
    pub fn memory_bytes(&self) -> usize {
        let of_segment = |segment: &Segment<V>| {
            segment.keys.capacity() * mem::size_of::<u64>()
                + segment.values.len() * mem::size_of::<V>()
        };
        self.segments.iter().map(of_segment).sum::<usize>()
            + self.segments.capacity() * mem::size_of::<Segment<V>>()
    }

    /// The value of `hash` (not 0) if it is known; otherwise adds it with `value`.
    #[inline]
    pub fn find_or_insert(&mut self, hash: u64, value: V) -> Option<&mut V> {
        if self.segments.is_empty() {
            // Most polls have few voters, so this reserves no room for more segments.
            self.segments.reserve_exact(1);
            self.segments.push(Segment::new(LEAST_SLOTS));
        }
        let key = mix(hash);
        let at = segment_of(key, self.segments.len());
        let slot = self.segments[at].seek(key);
        // Looked up by index because a reference would live on in the other branch.
        if self.segments[at].keys.get(slot) == Some(&key) {
            return Some(&mut self.segments[at].values[slot]);
        }
        self.segments[at].insert(slot, key, value);
        self.entries += 1;
        if self.entries > self.segments.len() * SEGMENT {
            self.add_segment();
        }
        None
    }

    /// Prefetches the slot of `hash`, for a lookup that follows soon.
    #[inline]
    pub fn fetch(&self, hash: u64) {
        if !self.segments.is_empty() {
            let key = mix(hash);
            let segment = &self.segments[segment_of(key, self.segments.len())];
            // A load whose result is not waited for is as good as a prefetch, and is safe code.
            hint::black_box(segment.keys.get(segment.home(key)).copied());
        }
    }

    /// Adds a segment, and moves to it the entries that now belong to it.
    fn add_segment(&mut self) {
        let count = self.segments.len();
        let donor = count - highest_bit(count);
        let old = mem::replace(&mut self.segments[donor], Segment::new(0));
        let (go, stay): (Vec<_>, Vec<_>) = old
            .entries()
            .partition(|entry| segment_of(entry.0, count + 1) == count);
        // A sixth is the room that a segment has on average.
        let with_room = |entries: &[_]| entries.len() + entries.len() / 6 + LEAST_SLOTS;
        self.segments[donor] = Segment::of(with_room(&stay), stay.into_iter());
        self.segments
            .push(Segment::of(with_room(&go), go.into_iter()));
    }
}

/// Consecutive slots; keys ascend, except for [`EMPTY`] ones.
#[derive(Debug)]
struct Segment<V> {
    keys: Vec<u64>,
    values: Vec<V>,
    /// Home slots are below this index; the slots from here on hold entries whose home slots were taken.
    homes: usize,
    entries: usize,
}

impl<V: Copy + Default> Segment<V> {
    fn new(slots: usize) -> Self {
        Self {
            keys: vec![EMPTY; slots],
            values: vec![V::default(); slots],
            homes: slots - (slots / SPARE).min(TAIL),
            entries: 0,
        }
    }

    /// Builds a segment of these entries, whose keys ascend.
    fn of(slots: usize, entries: impl Iterator<Item = (u64, V)>) -> Self {
        let mut segment = Self::new(slots);
        let mut next = 0;
        for (key, value) in entries {
            let slot = segment.home(key).max(next);
            if slot == segment.keys.len() {
                segment.extend_tail();
            }
            segment.keys[slot] = key;
            segment.values[slot] = value;
            segment.entries += 1;
            next = slot + 1;
        }
        segment
    }

    /// The first slot from the key's home on that is empty or has a key that is not smaller; it may lie after the last
    /// slot.
    #[inline]
    fn seek(&self, key: u64) -> usize {
        let home = self.home(key);
        // `EMPTY` is greater than every key.
        let after = self.keys[home..].iter().position(|&there| there >= key);
        after.map_or(self.keys.len(), |after| home + after)
    }

    /// Adds an entry at the slot that `seek` returned, and keeps a tenth of the slots empty.
    #[inline]
    fn insert(&mut self, slot: usize, key: u64, value: V) {
        let after = self.keys[slot..].iter().position(|&there| there == EMPTY);
        let empty = after.map_or(self.keys.len(), |after| slot + after);
        if empty == self.keys.len() {
            self.extend_tail();
        }
        self.keys.copy_within(slot..empty, slot + 1);
        self.values.copy_within(slot..empty, slot + 1);
        self.keys[slot] = key;
        self.values[slot] = value;
        self.entries += 1;
        let slots = self.keys.len();
        if self.entries > slots - slots / SPARE - 1 {
            *self = Self::of(slots + (slots / SPARE).max(LEAST_SLOTS), self.entries());
        }
    }

    /// Adds slots for entries that found all slots from their home on taken. This is rare, because the tail is seldom
    /// too short.
    #[cold]
    fn extend_tail(&mut self) {
        let slots = self.keys.len() + LEAST_SLOTS;
        self.keys.reserve_exact(LEAST_SLOTS);
        self.keys.resize(slots, EMPTY);
        self.values.reserve_exact(LEAST_SLOTS);
        self.values.resize(slots, V::default());
    }

    /// The home slot of `key`, where it is stored if no other key has taken it.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below `homes`, which is a usize"
    )]
    fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.homes as u128) >> 64) as usize
    }

    /// The entries, ascending.
    fn entries(&self) -> impl Iterator<Item = (u64, V)> {
        let slots = self.keys.iter().copied().zip(self.values.iter().copied());
        slots.filter(|&(key, _)| key != EMPTY)
    }
}

/// Folds the high half onto the low one, then multiplies by an odd number (from `SplitMix64`), so that every bit of the
/// hash affects both the low and the high bits. Only 0 would become [`EMPTY`].
#[inline]
fn mix(hash: u64) -> u64 {
    (hash ^ (hash >> 32))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .wrapping_sub(1)
}

/// The segment of `count` to which `key` belongs, by its low bits.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "low bits are what is wanted"
)]
fn segment_of(key: u64, count: usize) -> usize {
    let mask = count.next_power_of_two() - 1;
    let number = key as usize & mask;
    // Segments that do not exist yet are still part of the segment half as far.
    if number < count {
        number
    } else {
        number & (mask >> 1)
    }
}

/// The highest power of two that is at most `number`.
fn highest_bit(number: usize) -> usize {
    1 << number.ilog2()
}

#[cfg(test)]
mod tests {
    use super::super::model::hash_of;
    use super::{EMPTY, SEGMENT, Segment, Table, highest_bit, mix};

    fn hashes() -> impl Iterator<Item = u64> {
        (0..).map(hash_of)
    }

    /// The longest run of slots in use.
    fn longest_run<V>(table: &Table<V>) -> usize {
        let runs = table
            .segments
            .iter()
            .flat_map(|segment| segment.keys.split(|&key| key == EMPTY).map(<[u64]>::len));
        runs.max().unwrap_or(0)
    }

    #[test]
    fn what_was_added_is_found_with_its_value() {
        let mut table = Table::new();
        for (hash, value) in hashes().zip(0..3 * SEGMENT) {
            assert!(table.find_or_insert(hash, value).is_none());
        }
        for (hash, value) in hashes().zip(0..3 * SEGMENT) {
            assert_eq!(table.find_or_insert(hash, 0).copied(), Some(value));
        }
        assert_eq!(table.len(), 3 * SEGMENT);
    }

    #[test]
    fn the_lowest_and_the_highest_hash_are_kept() {
        let mut table = Table::new();
        for hash in [1, u64::MAX] {
            assert!(table.find_or_insert(hash, ()).is_none());
            assert!(table.find_or_insert(hash, ()).is_some());
        }
    }

    /// Random hashes never do this; then the segment is a sorted list.
    #[test]
    fn keys_of_one_home_are_kept_too() {
        let mut segment = Segment::new(8);
        for number in 0..1_000u64 {
            let key = u64::MAX / 2 + number * 7 % 1_000;
            let slot = segment.seek(key);
            segment.insert(slot, key, number);
        }
        let keys: Vec<_> = segment.entries().map(|entry| entry.0).collect();
        assert!(keys.is_sorted() && keys.len() == 1_000);
        assert!(
            keys.iter()
                .all(|&key| segment.keys[segment.seek(key)] == key)
        );
        assert!(segment.keys.len() < 1_600, "{} slots", segment.keys.len());
    }

    #[test]
    fn an_empty_table_takes_no_memory() {
        assert_eq!(Table::<u32>::new().memory_bytes(), 0);
    }

    #[test]
    fn an_entry_takes_at_most_fifteen_bytes() {
        let (mut voters, mut visitors) = (Table::new(), Table::new());
        for (hash, count) in hashes().zip(1..=300_000) {
            voters.find_or_insert(hash, 7u32);
            visitors.find_or_insert(hash, ());
            if count >= 1_000 && (count < 20_000 || count % 100 == 0) {
                let (with, without) = (voters.memory_bytes(), visitors.memory_bytes());
                assert!(with <= 15 * count, "{with} bytes for {count} voters");
                assert!(without <= 10 * count, "{without} bytes for {count}");
            }
        }
    }

    /// Every segment stays near its share, so no insertion has to move many entries.
    #[test]
    fn segments_stay_small_and_even() {
        let mut table = Table::new();
        for (hash, count) in hashes().zip(1..=40 * SEGMENT) {
            table.find_or_insert(hash, ());
            if count % 1_000 == 0 {
                let sizes = || table.segments.iter().map(|segment| segment.entries);
                assert!(sizes().max() < Some(9_000), "{:?}", sizes().max());
                assert_eq!(sizes().sum::<usize>(), count);
            }
        }
        assert_eq!(table.segments.len(), 40);
    }

    /// Shards are chosen by the residue of the hash: powers of two are the worst case for bits, others for products.
    #[test]
    fn hashes_of_one_residue_spread_like_any() {
        for shards in [1, 2, 3, 7, 16, 255, 256, 1_024] {
            let mut table = Table::new();
            for hash in hashes().take(10 * SEGMENT) {
                let hash = hash - hash % shards;
                table.find_or_insert(hash.max(shards) + (shards - 1), ());
            }
            let sizes: Vec<_> = table
                .segments
                .iter()
                .map(|segment| segment.entries)
                .collect();
            let (most, run) = (*sizes.iter().max().expect("segments"), longest_run(&table));
            assert!(most < 7_000, "{sizes:?} entries with {shards} shards");
            assert!(run < 1_200, "{run} slots in a row with {shards} shards");
        }
    }

    #[test]
    fn mixing_makes_zero_the_empty_mark_and_loses_nothing() {
        assert_eq!(mix(0), EMPTY);
        let mut seen: Vec<_> = (0..100_000)
            .chain((0..1_000).map(|n| n << 32))
            .map(mix)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100_999);
    }

    #[test]
    fn the_highest_bit_is_found() {
        assert_eq!([1, 2, 3, 4, 7, 8].map(highest_bit), [1, 2, 2, 4, 4, 8]);
    }
}
