//! The tally of a shard: the counts, and the visitors that have been counted.

use std::mem;

use super::combinations::Combinations;
use super::record::{Kind, Malformed, Record, Records};
use super::voters::Table;

/// A choice below this value is an index. From here on it is this value plus the number of a combination.
const COMBINATIONS: u32 = 1 << 16;

/// Records whose slots are prefetched together; more than a core can have in flight.
const GROUP: usize = 32;

/// What one shard of a poll has counted.
#[derive(Debug)]
pub struct Tally {
    voters: Table<u32>,
    visitors: Table<()>,
    sessions: Table<()>,
    combinations: Combinations,
    totals: Vec<u64>,
    impressions: u64,
}

/// The outcome of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// For each record, 1 if it has changed a count, else 0.
    pub outcomes: Vec<u8>,
    /// The records that must be stored, one after another.
    pub news: Vec<u8>,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    #[must_use]
    pub fn new() -> Self {
        Self {
            voters: Table::new(),
            visitors: Table::new(),
            sessions: Table::new(),
            combinations: Combinations::default(),
            totals: Vec::new(),
            impressions: 0,
        }
    }

    /// Counts a batch.
    ///
    /// A voter's first answer counts. A later one counts only with `allow_change` and if it differs; it then replaces
    /// the earlier one. Every impression counts; it is news if the visitor is new. A session changes no count; it is
    /// news if it is new.
    ///
    /// # Errors
    /// [`Malformed`] names the first record that is none; nothing has been counted then.
    pub fn apply(&mut self, records: &[u8], allow_change: bool) -> Result<Applied, Malformed> {
        let count = check(records)?;
        let mut applied = Applied {
            outcomes: Vec::with_capacity(count),
            news: Vec::with_capacity(records.len()),
        };
        self.each(records, |tally, record| {
            let (counts, is_news) = tally.count(record, allow_change);
            applied.outcomes.push(counts.into());
            if is_news {
                applied.news.extend_from_slice(record.bytes);
            }
        });
        Ok(applied)
    }

    /// Loads stored news, in their original order: a later answer replaces an earlier one. Counts of impressions do not
    /// change, see [`set_impressions`](Self::set_impressions).
    ///
    /// # Errors
    /// [`Malformed`] names the first record that is none; nothing has been taken then.
    pub fn load(&mut self, records: &[u8]) -> Result<(), Malformed> {
        check(records)?;
        let impressions = self.impressions;
        self.each(records, |tally, record| {
            tally.count(record, true);
        });
        self.impressions = impressions;
        Ok(())
    }

    /// How many times the poll was shown.
    #[must_use]
    pub fn impressions(&self) -> u64 {
        self.impressions
    }

    pub fn set_impressions(&mut self, impressions: u64) {
        self.impressions = impressions;
    }

    /// The answers per option, from index 0 to the highest index ever chosen.
    #[must_use]
    pub fn totals(&self) -> &[u64] {
        &self.totals
    }

    /// The number of voters whose answer counts.
    #[must_use]
    pub fn voters(&self) -> usize {
        self.voters.len()
    }

    /// The number of visitors to whom the poll was shown.
    #[must_use]
    pub fn visitors(&self) -> usize {
        self.visitors.len()
    }

    /// The number of sessions in which the poll was shown.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes that the tally occupies; those of combinations are estimated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        mem::size_of::<Self>()
            + self.voters.memory_bytes()
            + self.visitors.memory_bytes()
            + self.sessions.memory_bytes()
            + self.combinations.memory_bytes()
            + self.totals.capacity() * mem::size_of::<u64>()
    }

    /// Calls `count` with each of the records, which are well-formed.
    ///
    /// Works in groups whose memory is prefetched together: with many voters, waiting for one cache line after another
    /// is most of the work.
    fn each(&mut self, records: &[u8], mut count: impl FnMut(&mut Self, &Record<'_>)) {
        let mut records = Records::new(records).flatten();
        let mut group = Vec::with_capacity(GROUP);
        loop {
            group.clear();
            group.extend(records.by_ref().take(GROUP));
            if group.is_empty() {
                return;
            }
            for record in &group {
                match record.kind {
                    Kind::Impression => self.visitors.fetch(record.hash),
                    Kind::Session => self.sessions.fetch(record.hash),
                    Kind::Single(_) | Kind::Several(_) => self.voters.fetch(record.hash),
                }
            }
            for record in &group {
                count(self, record);
            }
        }
    }

    /// Returns whether a count has changed, and whether the record is news.
    #[inline]
    fn count(&mut self, record: &Record<'_>, allow_change: bool) -> (bool, bool) {
        match record.kind {
            Kind::Impression => {
                self.impressions += 1;
                let is_new = self.visitors.find_or_insert(record.hash, ()).is_none();
                (true, is_new)
            }
            Kind::Session => {
                let is_new = self.sessions.find_or_insert(record.hash, ()).is_none();
                (false, is_new)
            }
            Kind::Single(index) => {
                let counts = self.vote(record.hash, index.into(), allow_change);
                (counts, counts)
            }
            Kind::Several(several) => {
                let choice = COMBINATIONS + self.combinations.hold(several);
                let counts = self.vote(record.hash, choice, allow_change);
                if !counts {
                    self.release(choice);
                }
                (counts, counts)
            }
        }
    }

    /// Whether the choice counts now.
    #[inline]
    fn vote(&mut self, hash: u64, choice: u32, allow_change: bool) -> bool {
        if let Some(known) = self.voters.find_or_insert(hash, choice) {
            if !allow_change || *known == choice {
                return false;
            }
            let earlier = mem::replace(known, choice);
            self.each_index(earlier, |total| *total -= 1);
            self.release(earlier);
        }
        self.each_index(choice, |total| *total += 1);
        true
    }

    /// Changes the totals of a choice's indexes.
    #[inline]
    fn each_index(&mut self, choice: u32, change: impl Fn(&mut u64)) {
        let Self {
            combinations,
            totals,
            ..
        } = self;
        if let Some(number) = choice.checked_sub(COMBINATIONS) {
            for index in combinations.indexes(number).indexes() {
                change(total(totals, index.into()));
            }
        } else {
            change(total(totals, choice as usize));
        }
    }

    fn release(&mut self, choice: u32) {
        if let Some(number) = choice.checked_sub(COMBINATIONS) {
            self.combinations.release(number);
        }
    }
}

/// The number of records, if all are well-formed.
fn check(records: &[u8]) -> Result<usize, Malformed> {
    Records::new(records).try_fold(0, |count, record| record.map(|_| count + 1))
}

/// The total of an index; the list grows if the index is the highest so far.
#[inline]
fn total(totals: &mut Vec<u64>, index: usize) -> &mut u64 {
    if index >= totals.len() {
        totals.resize(index + 1, 0);
    }
    &mut totals[index]
}
