//! Numbers for combinations of indexes, so that one number represents a voter's choice.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use super::record::Several;

/// The combinations that voters have chosen, each with its number.
///
/// A combination that no voter holds any longer is forgotten, and its number is reused. So a voter who changes an
/// answer again and again takes no more memory than one who answers once.
#[derive(Debug, Default)]
pub(super) struct Combinations {
    numbers: HashMap<Arc<[u8]>, u32>,
    members: Vec<Member>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Member {
    /// As in [`Several`]; empty while the number is free.
    indexes: Arc<[u8]>,
    holders: u32,
}

impl Combinations {
    /// The number of a combination, which gains a holder.
    pub fn hold(&mut self, several: Several<'_>) -> u32 {
        if let Some(&number) = self.numbers.get(several.bytes()) {
            self.member(number).holders += 1;
            return number;
        }
        let indexes: Arc<[u8]> = several.bytes().into();
        let member = Member {
            indexes: Arc::clone(&indexes),
            holders: 1,
        };
        let number = if let Some(number) = self.free.pop() {
            *self.member(number) = member;
            number
        } else {
            self.members.push(member);
            u32::try_from(self.members.len() - 1).expect("memory ends before four billion")
        };
        self.numbers.insert(indexes, number);
        number
    }

    /// Removes a holder. The number becomes invalid when that was the last one.
    pub fn release(&mut self, number: u32) {
        let member = self.member(number);
        member.holders -= 1;
        if member.holders == 0 {
            let indexes = mem::take(&mut member.indexes);
            self.numbers.remove(&indexes);
            self.free.push(number);
        }
    }

    /// The indexes that a number in use stands for.
    pub fn indexes(&self, number: u32) -> Several<'_> {
        Several::from_bytes(&self.members[number as usize].indexes)
    }

    /// Bytes on the heap; those of the map are estimated.
    pub fn memory_bytes(&self) -> usize {
        // An `Arc` stores two counts in front of its bytes.
        let held = |member: &Member| member.indexes.len() + 2 * mem::size_of::<usize>();
        self.members.iter().map(held).sum::<usize>()
            + self.members.capacity() * mem::size_of::<Member>()
            + self.free.capacity() * mem::size_of::<u32>()
            // The map has one byte of metadata per slot and leaves an eighth of the slots empty.
            + self.numbers.capacity() * 8 / 7 * (mem::size_of::<(Arc<[u8]>, u32)>() + 1)
    }

    fn member(&mut self, number: u32) -> &mut Member {
        &mut self.members[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::{Combinations, Several};

    #[test]
    fn equal_combinations_have_one_number() {
        let mut combinations = Combinations::default();
        let number = combinations.hold(Several::from_bytes(&[1, 2]));
        assert_ne!(combinations.hold(Several::from_bytes(&[1, 3])), number);
        assert_eq!(combinations.hold(Several::from_bytes(&[1, 2])), number);
        assert_eq!(combinations.indexes(number).bytes(), [1, 2]);
    }

    #[test]
    fn a_combination_stays_until_its_last_holder_goes() {
        let mut combinations = Combinations::default();
        let number = combinations.hold(Several::from_bytes(&[1, 2]));
        combinations.hold(Several::from_bytes(&[1, 2]));
        combinations.release(number);
        assert_eq!(combinations.indexes(number).bytes(), [1, 2]);
        combinations.release(number);
        assert_eq!(combinations.hold(Several::from_bytes(&[4, 5])), number);
        assert_ne!(combinations.hold(Several::from_bytes(&[1, 2])), number);
    }

    #[test]
    fn changing_on_and_on_takes_no_more_memory() {
        let mut combinations = Combinations::default();
        let mut bytes = Vec::new();
        for round in 0..1_000u16 {
            let [low, high] = round.to_le_bytes();
            let number = combinations.hold(Several::from_bytes(&[low, high]));
            combinations.release(number);
            bytes.push(combinations.memory_bytes());
        }
        assert_eq!(bytes[0], bytes[999]);
    }
}
