//! The ids of connections.

/// The slot of a connection in its loop.
pub type SlotIndex = u32;

/// The id of a connection: its loop, its slot, and how many times the slot was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    pub(super) const GENERATION_MASK: u32 = 0x00FF_FFFF;

    /// The connection in a slot of a loop; `generation` tells the successive users of the slot apart.
    #[must_use]
    pub fn new(loop_index: usize, slot: SlotIndex, generation: u32) -> Self {
        Self(
            (loop_index as u64) << 56
                | u64::from(generation & Self::GENERATION_MASK) << 32
                | u64::from(slot),
        )
    }

    /// The loop that owns it. A forged id may name a loop that does not exist.
    #[must_use]
    pub fn loop_index(self) -> usize {
        usize::from(self.0.to_be_bytes()[0])
    }

    pub(super) fn slot(self) -> SlotIndex {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        SlotIndex::from_be_bytes([a, b, c, d])
    }

    pub(super) fn generation(self) -> u32 {
        let [_, a, b, c, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([0, a, b, c])
    }
}
