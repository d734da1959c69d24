//! The few system calls of the event loops.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    accept_with, acceptfrom_with, bind, getsockname, listen, recv, send, sendmsg, shutdown,
    socket_with, sockopt,
};

/// The length of the kernel's queue of connections that wait for `accept`; the kernel cuts it to its own limit.
const BACKLOG: i32 = 65_535;
/// How many unsent bytes of a socket the kernel may hold. Beyond this, a slow reader shows as blocked here, where the
/// lag policy sees it, instead of filling megabytes of kernel memory.
const UNSENT_BYTES: libc::c_int = 128 << 10;

/// A listening socket on `address` that shares its port with the other loops.
///
/// # Errors
/// The error of the system, for example that the port is taken.
pub(super) fn open_listener(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Accepted sockets inherit both options, which saves two calls per connection.
    sockopt::set_tcp_nodelay(&socket, true)?;
    limit_unsent(&socket);
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The address a socket is bound to.
///
/// # Errors
/// The error of the system.
pub(super) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(getsockname(socket)?.try_into()?)
}

const BYTES_OF_INT: libc::socklen_t = 4;
const _: () = assert!(size_of::<libc::c_int>() == 4);

#[expect(unsafe_code, reason = "rustix has no wrapper for TCP_NOTSENT_LOWAT")]
fn limit_unsent(socket: &OwnedFd) {
    let value = UNSENT_BYTES;
    // SAFETY: the pointer and the length describe `value`, which outlives the call. After a failure the kernel's
    // default stays, which costs memory and nothing else.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            BYTES_OF_INT,
        );
    }
}

/// Breaks the connection when the peer has not acknowledged sent data for this many milliseconds.
pub(super) fn limit_unacknowledged(socket: &OwnedFd, most_ms: u64) {
    // After a failure the kernel's default stays: some 15 minutes of retries.
    let _ = sockopt::set_tcp_user_timeout(socket, u32::try_from(most_ms).unwrap_or(u32::MAX));
}

/// The result of `accept`.
pub(super) enum Accepted {
    Connection(OwnedFd, IpAddr),
    /// No connection is waiting.
    None,
    /// The process or the system is out of descriptors or memory.
    Exhausted,
}

/// Accepts the next waiting connection.
pub(super) fn accept(listener: &OwnedFd) -> Accepted {
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, peer)) => {
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                let Some(peer) = peer else { continue };
                return Accepted::Connection(socket, peer.ip());
            }
            Err(Errno::AGAIN) => return Accepted::None,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                return Accepted::Exhausted;
            }
            // The peer left while it waited, or a signal arrived.
            Err(_) => {}
        }
    }
}

/// Accepts the next connection that waits at a socket file; `None` when there is none.
///
/// # Errors
/// The process or the system is out of descriptors or memory.
pub(super) fn accept_local(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The result of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    Bytes(usize),
    /// The socket has no input, or no room.
    Blocked,
    /// The peer is gone.
    Gone,
}

/// Reads once; `Bytes(0)` is the peer's end of stream.
pub(super) fn read(socket: &OwnedFd, buffer: &mut [u8]) -> Moved {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => return Moved::Bytes(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Moved::Blocked,
            Err(_) => return Moved::Gone,
        }
    }
}

#[cfg(test)]
thread_local! {
    static WRITES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many times this thread has written to a single socket.
#[cfg(test)]
pub(super) fn writes() -> usize {
    WRITES.get()
}

/// Writes once.
pub(super) fn write(socket: &OwnedFd, bytes: &[u8]) -> Moved {
    #[cfg(test)]
    WRITES.set(WRITES.get() + 1);
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(bytes) => return Moved::Bytes(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => return Moved::Blocked,
            Err(_) => return Moved::Gone,
        }
    }
}

/// Writes several slices at once, in one call.
pub(super) fn write_joined(socket: &OwnedFd, pieces: &[IoSlice<'_>]) -> Moved {
    if let [piece] = pieces {
        return write(socket, piece);
    }
    #[cfg(test)]
    WRITES.set(WRITES.get() + 1);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags) {
            Ok(bytes) => return Moved::Bytes(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => return Moved::Blocked,
            Err(_) => return Moved::Gone,
        }
    }
}

/// Tells the peer that no more data follow.
pub(super) fn end_writing(socket: &OwnedFd) {
    // An error means that the peer has already gone, which the next read discovers.
    let _ = shutdown(socket, Shutdown::Write);
}

/// A descriptor that wakes a thread that waits for it to become readable.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// # Errors
    /// When the process is out of descriptors.
    pub fn open() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(fd))
    }

    /// The descriptor that becomes readable.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Makes it readable.
    pub fn wake(&self) {
        // It can fail only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// The events a loop waits for.
pub(super) struct Poll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// The readiness of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The peer has closed at least its side, or the socket has an error.
    pub hung_up: bool,
}

impl Poll {
    /// # Errors
    /// When the process is out of descriptors.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(1024),
        })
    }

    /// Watches a connection for everything, edge-triggered, so that no later call is needed.
    ///
    /// # Errors
    /// When the kernel's limit on watches is reached.
    pub fn add_connection(&self, socket: &OwnedFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a listener or a wake descriptor, level-triggered.
    ///
    /// # Errors
    /// When the kernel's limit on watches is reached.
    pub fn add_source(&self, source: &OwnedFd, token: u64, edge: bool) -> io::Result<()> {
        let edge = if edge {
            epoll::EventFlags::ET
        } else {
            epoll::EventFlags::empty()
        };
        Ok(epoll::add(
            &self.epoll,
            source,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN | edge,
        )?)
    }

    /// Stops watching.
    pub fn remove(&self, source: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits at most `timeout_ms` and stores the ready descriptors in `ready`.
    pub fn wait(&mut self, timeout_ms: u64, ready: &mut Vec<Ready>) {
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(timeout_ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ms % 1000 * 1_000_000).unwrap_or(0),
        };
        self.events.clear();
        ready.clear();
        // A correct call can fail only because of a signal: then no descriptor is ready this time.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&timeout),
        );
        ready.extend(self.events.iter().map(|event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                hung_up: flags.intersects(
                    epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP,
                ),
            }
        }));
    }
}
