//! A slow, obvious model of a tally: sets, a map of answers, and sums over it.
//!
//! Property tests and the fuzzer give a tally and its model the same batches and compare them.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use proptest::prelude::*;

use super::Tally;
use super::record::{Kind, Record, encode_answer, encode_impression, encode_session};

/// A record that owns its parts; the hash is first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Impression(u64),
    Session(u64),
    Answer(u64, BTreeSet<u16>),
}

impl Sent {
    pub fn new(record: &Record<'_>, hash: u64) -> Self {
        match record.kind {
            Kind::Impression => Self::Impression(hash),
            Kind::Session => Self::Session(hash),
            Kind::Single(index) => Self::Answer(hash, BTreeSet::from([index])),
            Kind::Several(several) => Self::Answer(hash, several.indexes().collect()),
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Impression(hash) => encode_impression(*hash, out),
            Self::Session(hash) => encode_session(*hash, out),
            Self::Answer(hash, indexes) => {
                let indexes: Vec<_> = indexes.iter().copied().collect();
                encode_answer(&indexes, *hash, out).expect("a set of good indexes");
            }
        }
    }
}

/// The bytes of a batch.
pub(crate) fn encode(batch: &[Sent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sent in batch {
        sent.encode(&mut bytes);
    }
    bytes
}

/// The hash of a voter, for tests of many.
#[cfg(test)]
pub(crate) fn hash_of(number: u64) -> u64 {
    // The generator `SplitMix64`.
    let mut hash = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)).max(1)
}

/// Answers of these voters, the indexes 0 to 4 in turn.
#[cfg(test)]
pub(crate) fn encode_votes(voters: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in voters {
        let index = u16::try_from(number % 5).expect("small");
        encode_answer(&[index], hash_of(number), &mut bytes).expect("a good index");
    }
    bytes
}

/// An answer with these indexes.
#[cfg(test)]
pub(crate) fn answer(hash: u64, indexes: &[u16]) -> Sent {
    Sent::Answer(hash, indexes.iter().copied().collect())
}

/// Combinations and single answers, from few and from many voters.
#[cfg(test)]
pub(crate) fn sent() -> impl Strategy<Value = Sent> {
    let hash = prop_oneof![4 => 1u64..20, 1 => 1u64..=u64::MAX];
    let index = prop_oneof![4 => 0u16..4, 1 => 0u16..1_000];
    let indexes = prop_oneof![
        3 => index.clone().prop_map(|index| BTreeSet::from([index])),
        2 => proptest::collection::btree_set(index, 1..5),
    ];
    prop_oneof![
        1 => hash.clone().prop_map(Sent::Impression),
        1 => hash.clone().prop_map(Sent::Session),
        4 => (hash, indexes).prop_map(|(hash, indexes)| Sent::Answer(hash, indexes)),
    ]
}

/// A tally with all that it should know, and all news that it gave.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub tally: Tally,
    pub news: Vec<u8>,
    answers: BTreeMap<u64, BTreeSet<u16>>,
    visitors: BTreeSet<u64>,
    sessions: BTreeSet<u64>,
    impressions: u64,
    options: usize,
}

impl Model {
    /// Gives the tally a batch; what it says of it must be right.
    pub fn apply(&mut self, batch: &[Sent], allow_change: bool) {
        let told: Vec<_> = batch
            .iter()
            .map(|sent| self.count(sent, allow_change))
            .collect();
        let applied = self
            .tally
            .apply(&encode(batch), allow_change)
            .expect("a good batch");
        let outcomes: Vec<u8> = told.iter().map(|told| told.0.into()).collect();
        assert_eq!(applied.outcomes, outcomes);
        let stored = batch.iter().zip(told).filter(|(_, told)| told.1);
        let news: Vec<_> = stored.map(|(sent, _)| sent.clone()).collect();
        assert_eq!(applied.news, encode(&news));
        self.news.extend(applied.news);
    }

    /// (whether a count has changed, whether the record is news)
    fn count(&mut self, sent: &Sent, allow_change: bool) -> (bool, bool) {
        match sent {
            Sent::Impression(hash) => {
                self.impressions += 1;
                (true, self.visitors.insert(*hash))
            }
            Sent::Session(hash) => (false, self.sessions.insert(*hash)),
            Sent::Answer(hash, indexes) => {
                let known = self.answers.get(hash);
                let counts = known.is_none_or(|known| allow_change && known != indexes);
                if counts {
                    self.answers.insert(*hash, indexes.clone());
                    let highest = indexes.last().copied().expect("an index");
                    self.options = self.options.max(usize::from(highest) + 1);
                }
                (counts, counts)
            }
        }
    }

    /// The tally says what the model says.
    pub fn check(&self) {
        self.compare(&self.tally);
    }

    /// A tally made from the news alone says it too.
    pub fn check_reloaded(&self) {
        let mut reloaded = Tally::new();
        reloaded.load(&self.news).expect("news are good records");
        reloaded.set_impressions(self.impressions);
        self.compare(&reloaded);
    }

    fn compare(&self, tally: &Tally) {
        let mut totals = vec![0; self.options];
        for &index in self.answers.values().flatten() {
            totals[usize::from(index)] += 1;
        }
        assert_eq!(tally.totals(), totals);
        assert_eq!(tally.voters(), self.answers.len());
        assert_eq!(tally.visitors(), self.visitors.len());
        assert_eq!(tally.sessions(), self.sessions.len());
        assert_eq!(tally.impressions(), self.impressions);
    }
}
