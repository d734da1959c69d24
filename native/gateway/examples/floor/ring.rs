//! Sends by `io_uring`: many in one system call.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

/// Sends a submission, as many as the broker's own.
const BATCH: u32 = 512;

/// A queue of sends.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// # Errors
    /// When the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(BATCH)?;
        Ok(Self { ring })
    }

    /// Sends the whole of `bytes` to each viewer.
    ///
    /// # Errors
    /// Of the first viewer that has gone.
    #[expect(unsafe_code, reason = "the kernel reads the bytes by address")]
    pub fn send_all(&mut self, viewers: &[&TcpStream], bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        for chunk in viewers.chunks(BATCH as usize) {
            for viewer in chunk {
                // MSG_WAITALL makes the kernel go on after a part, as `write_all` does.
                let entry =
                    opcode::Send::new(types::Fd(viewer.as_raw_fd()), bytes.as_ptr(), length)
                        .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                        .build();
                // SAFETY: `bytes` outlives the operation: all completions of this chunk are taken below before the
                // function returns, also when one is an error.
                unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
            }
            self.complete(chunk.len(), length)?;
        }
        Ok(())
    }

    fn complete(&mut self, sends: usize, length: u32) -> io::Result<()> {
        let (mut missing, mut outcome) = (sends, Ok(()));
        while missing > 0 {
            let _ = self.ring.submit_and_wait(missing);
            for completion in self.ring.completion() {
                missing -= 1;
                let sent = completion.result();
                if sent < 0 {
                    outcome = Err(io::Error::from_raw_os_error(-sent));
                } else if sent.unsigned_abs() != length {
                    outcome = Err(io::Error::other("a viewer has got a part"));
                }
            }
        }
        outcome
    }
}
