//! Why a log refuses an entry.

/// Why an entry cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A push that is not the next one.
    Gap { expected: u64, found: u64 },
    /// A push of an epoch that is not the log's.
    Epoch { expected: String, found: String },
    /// A push whose seq the log has under another id: one of the two was lost.
    Other { seq: u64 },
    /// `params` is not a JSON object, or the method is too long.
    Malformed,
    /// The topic has ended.
    Ended,
}

impl std::fmt::Display for LogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gap { expected, found } => {
                write!(f, "seq {found} leaves a gap: {expected} is next")
            }
            Self::Epoch { expected, found } => {
                write!(f, "epoch {found:?} is not the log's {expected:?}")
            }
            Self::Other { seq } => write!(f, "seq {seq} was another push"),
            Self::Malformed => f.write_str("params is not a JSON object, or method is too long"),
            Self::Ended => f.write_str("the topic has ended"),
        }
    }
}

impl std::error::Error for LogError {}
