//! A compact set of hashes, each with a value, that grows without pauses.
//!
//! Theory of operation. Linear hashing (Litwin, 1980) over segments of some four thousand entries: when the segments
//! are full on average, one more is added and takes over half of an earlier one, each in its turn. So the work of one
//! insertion is bounded by the size of a segment, whatever that of the set.
//!
//! A segment is a table with ordered linear probing (Amble and Knuth, 1974): the keys of the slots in use ascend. An
//! entry lies at its home, to which its key is proportional, or as little after it as the entries before it allow. It
//! grows by a tenth when nine tenths full, so that at least 81 % of the slots are in use: 8 bytes of hash and a
//! value take at most 1.23 times as much. Growing that often costs little because the order stays: entries are copied
//! one after another, and nothing is looked up. Nothing is ever removed.
//!
//! The low bits of a hash choose the segment, the high ones the home. Hashes that reach one table have the residue in
//! common by which their shard was chosen, so they are mixed first, by a bijection; what is stored is the mixed hash.

use std::{hint, mem};

/// Entries a segment, on average. Placing the entries of one anew takes some 10 µs.
const SEGMENT: usize = 4_096;

/// Slots of the smallest segment; it grows by as many while a tenth is less.
const LEAST_SLOTS: usize = 8;

/// One of so many slots stays empty, and a segment grows by one of so many.
const SPARE: usize = 10;

/// Slots after the last home; a segment that needs more is given them then.
const TAIL: usize = 24;

/// The key of a slot that is not in use.
const EMPTY: u64 = u64::MAX;

/// Hashes that are not 0, each with a value.
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

    /// The value of `hash`, which is not 0, if it is known; else adds it with `value`.
    #[inline]
    pub fn find_or_insert(&mut self, hash: u64, value: V) -> Option<&mut V> {
        if self.segments.is_empty() {
            // Most polls have few voters: no room for more segments yet.
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

    /// Has the processor fetch the place of `hash`, so that it is there when the hash is looked up soon.
    #[inline]
    pub fn fetch(&self, hash: u64) {
        if !self.segments.is_empty() {
            let key = mix(hash);
            let segment = &self.segments[segment_of(key, self.segments.len())];
            // A load that nothing waits for is as good as a prefetch, and is safe code.
            hint::black_box(segment.keys.get(segment.home(key)).copied());
        }
    }

    /// Adds a segment, and gives it the entries that are now its own.
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

/// Slots in a row; the keys ascend where they are not [`EMPTY`].
#[derive(Debug)]
struct Segment<V> {
    keys: Vec<u64>,
    values: Vec<V>,
    /// Homes are below it; the slots from here on are for those that found theirs taken.
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

    /// A segment of these entries, whose keys ascend.
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

    /// The first slot from the key's home on that is empty or whose key is not smaller; it may be after the last.
    #[inline]
    fn seek(&self, key: u64) -> usize {
        let home = self.home(key);
        // `EMPTY` is greater than every key.
        let after = self.keys[home..].iter().position(|&there| there >= key);
        after.map_or(self.keys.len(), |after| home + after)
    }

    /// Adds an entry at the slot that `seek` has named, and keeps a tenth of the slots empty.
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

    /// Adds slots for entries that found all from their home on taken; rare, for the tail is seldom too short.
    #[cold]
    fn extend_tail(&mut self) {
        let slots = self.keys.len() + LEAST_SLOTS;
        self.keys.reserve_exact(LEAST_SLOTS);
        self.keys.resize(slots, EMPTY);
        self.values.reserve_exact(LEAST_SLOTS);
        self.values.resize(slots, V::default());
    }

    /// The slot where `key` lies if no other is in its way.
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

/// The high half folded onto the low one, then multiplied by an odd number (one of `SplitMix64`), so that every bit
/// of the hash has a say in the low bits and in the high ones. 0 would become [`EMPTY`], and no other does.
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
    // Segments that are not there yet are still part of the one half as far.
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

    /// No hashes do this by chance; then the segment is a sorted list.
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

    /// Every segment stays near its share, so no insertion has much to place anew.
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
