//! Deleted events: whoever reads them later gets none of their content.
//!
//! Every message about a deleted event gives way to its deletion, each under its own seq: no seq is missing, and a
//! reader that hears of a deletion more than once, or of one of an event that it does not know, has nothing to do.

use std::collections::HashMap;

use super::{LIVE_START, Log, LogError};
use crate::log::encoding;
use crate::log::entry::{DELETION, Entry, Kind, Meta};
use crate::log::segment::Segment;

/// The seq and the params of the newest deletion of each event.
pub(super) type Deletions = HashMap<String, (u64, Vec<u8>)>;

impl Log {
    /// Puts the deletion of an event in the place of all that the log has about it.
    pub(super) fn withdraw(&mut self, deletion: &Entry<'_>) {
        let Some(id) = encoding::message_id(deletion.params) else {
            return;
        };
        let is_about = |(segment, index): &(&Segment, u64)| {
            let meta = segment.meta(*index);
            let params = encoding::params(meta, segment.frame(*index));
            meta.kind == Kind::Push && !meta.is_deletion && encoding::message_id(params) == Some(id)
        };
        let about = self.entries().filter(is_about);
        let places: Vec<_> = about
            .map(|(segment, index)| (index, segment.meta(index).seq))
            .collect();
        for (index, seq) in places {
            let Some(params) = encoding::renumbered(deletion.params, seq) else {
                return;
            };
            let params = params.as_slice();
            let Ok(meta) = self.encode(&Entry {
                seq,
                params,
                ..*deletion
            }) else {
                return;
            };
            if index >= LIVE_START {
                self.drop_deflated(index);
                self.drop_events(index);
                self.live.replace(index, &meta, &self.frame);
            } else {
                self.past.replace(index, &meta, &self.frame);
            }
        }
    }

    /// The deletions among the pushes `older` than the log's, and among its own.
    pub(super) fn deletions(&self, older: &[&Entry<'_>]) -> Deletions {
        let given = older
            .iter()
            .filter(|entry| entry.is_deletion())
            .map(|entry| (entry.seq, entry.params));
        let kept = self
            .entries()
            .map(|(segment, index)| (segment.meta(index), segment.frame(index)))
            .filter(|(meta, _)| meta.is_deletion)
            .map(|(meta, frame)| (meta.seq, encoding::params(meta, frame)));
        given
            .chain(kept)
            .filter_map(|(seq, params)| {
                let id = encoding::message_id(params)?;
                Some((id.to_owned(), (seq, params.to_vec())))
            })
            .collect()
    }

    /// Encodes a push, or in its place a later deletion of its event.
    pub(super) fn encode_or_withdraw(
        &mut self,
        push: &Entry<'_>,
        deletions: &Deletions,
    ) -> Result<Meta, LogError> {
        let params = encoding::message_id(push.params)
            .and_then(|id| deletions.get(id))
            .filter(|(seq, _)| *seq > push.seq)
            .and_then(|(_, params)| encoding::renumbered(params, push.seq));
        match params {
            Some(params) => self.encode(&Entry {
                method: DELETION,
                params: &params,
                ..*push
            }),
            None => self.encode(push),
        }
    }

    /// The entries of the epoch, oldest first.
    fn entries(&self) -> impl Iterator<Item = (&Segment, u64)> {
        let past = self.past.first..self.past.end();
        let live = self.first_live()..self.live.end();
        let past = past.map(|index| (&self.past, index));
        past.chain(live.map(|index| (&self.live, index)))
    }
}
