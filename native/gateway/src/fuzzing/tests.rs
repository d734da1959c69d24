//! Every target on every case of its corpus, whole and damaged.

use std::path::Path;

use proptest::test_runner::{RngAlgorithm, TestRng};

/// Damaged copies of each case.
const COPIES: u64 = 12;

#[test]
fn request_heads_keep_their_rules() {
    run("handshake", super::handshake);
}

#[test]
fn frames_keep_their_rules() {
    run("frames", super::frames);
}

#[test]
fn envelopes_keep_their_rules() {
    run("envelope", super::envelope);
}

#[test]
fn logs_keep_their_rules() {
    run("log", super::log);
}

#[test]
fn answers_keep_their_rules() {
    run("answers", super::answers);
}

#[test]
fn proxy_headers_keep_their_rules() {
    run("proxy", super::proxy);
}

fn run(name: &str, target: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut cases: Vec<_> = std::fs::read_dir(&corpus)
        .expect("a corpus")
        .map(|entry| entry.expect("a file").path())
        .collect();
    cases.sort();
    assert!(cases.len() > 5, "{} is nearly empty", corpus.display());
    // Deterministic damage; the fuzzer tries other damage.
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for path in cases {
        let case = std::fs::read(&path).expect("a file");
        target(&case);
        for _ in 0..COPIES {
            target(&damage(&case, &mut random));
        }
    }
}

/// Changes, duplicates or removes a few bytes.
fn damage(case: &[u8], random: &mut TestRng) -> Vec<u8> {
    use proptest::prelude::RngCore;
    let mut bytes = case.to_vec();
    for _ in 0..=random.next_u32() % 4 {
        if bytes.is_empty() {
            break;
        }
        let at = random.next_u32() as usize % bytes.len();
        match random.next_u32() % 4 {
            0 => bytes[at] ^= 1 << (random.next_u32() % 8),
            1 => bytes[at] = b"{[\"\\:,\r\n \0\xff\x80"[random.next_u32() as usize % 12],
            2 => {
                bytes.remove(at);
            }
            _ => {
                let rest = bytes.split_off(at);
                let length = rest.len().min(16);
                bytes.extend_from_slice(&rest[..length]);
                bytes.extend_from_slice(&rest);
            }
        }
    }
    bytes
}
