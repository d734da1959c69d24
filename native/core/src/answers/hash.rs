//! The keyed hash that represents a visitor.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// What the hash is for. A visitor has a different hash for each purpose and each poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Purpose {
    Impression = 0,
    Session = 1,
    Answer = 2,
}

/// Hashes of one program's visitors for one poll: SipHash-2-4 (Aumasson and Bernstein, 2012) over one byte for the
/// purpose, the poll as 8 bytes little-endian, and the id in UTF-8. Without the key a hash reveals nothing about the
/// id.
#[derive(Debug, Clone, Copy)]
pub struct Hasher<'a> {
    key: &'a [u8; 16],
    poll: u64,
}

impl<'a> Hasher<'a> {
    #[must_use]
    pub fn new(key: &'a [u8; 16], poll: u64) -> Self {
        Self { key, poll }
    }

    /// The hash of a visitor who answers; never 0.
    #[must_use]
    pub fn answer(&self, visitor: &str) -> u64 {
        self.hash(Purpose::Answer, visitor)
    }

    /// The hash of a visitor who was shown the poll; never 0.
    #[must_use]
    pub fn impression(&self, visitor: &str) -> u64 {
        self.hash(Purpose::Impression, visitor)
    }

    /// The hash of a session in which the poll was shown; never 0.
    #[must_use]
    pub fn session(&self, session: &str) -> u64 {
        self.hash(Purpose::Session, session)
    }

    fn hash(&self, purpose: Purpose, id: &str) -> u64 {
        let mut hasher = SipHasher24::new_with_key(self.key);
        hasher.write(&[purpose as u8]);
        hasher.write(&self.poll.to_le_bytes());
        hasher.write(id.as_bytes());
        // 0 marks an empty slot of the tables.
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use siphasher::sip::SipHasher24;

    use super::Hasher;

    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// `vectors_sip64` of the reference implementation: the bytes 0, 1, 2 … of each length, under `KEY`.
    #[test]
    fn the_hash_is_siphash_2_4() {
        for (length, hash) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
            (63, 0x958a_324c_eb06_4572),
        ] {
            let mut hasher = SipHasher24::new_with_key(&KEY);
            let message: Vec<u8> = (0..length).collect();
            hasher.write(&message);
            assert_eq!(hasher.finish(), hash, "{length} bytes");
        }
    }

    /// Made with another implementation. Stored records hold these hashes: they must never change.
    #[test]
    fn what_is_hashed_is_purpose_poll_and_id() {
        let hasher = Hasher::new(&KEY, 0x0102_0304_0506_0708);
        assert_eq!(hasher.impression("Zoë"), IMPRESSION);
        assert_eq!(hasher.session("Zoë"), SESSION);
        assert_eq!(hasher.answer("Zoë"), ANSWER);
        // The message of the reference's vector of 15 bytes: purpose 0, then the poll, then the id.
        let poll = u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        let id = "\u{9}\u{a}\u{b}\u{c}\u{d}\u{e}";
        assert_eq!(
            Hasher::new(&KEY, poll).impression(id),
            0xa129_ca61_49be_45e5
        );
    }

    const IMPRESSION: u64 = 0x4d56_aac0_c3b2_5cb7;
    const SESSION: u64 = 0x81df_6100_fdf9_c3ec;
    const ANSWER: u64 = 0xb800_424b_fd25_7d91;
}
