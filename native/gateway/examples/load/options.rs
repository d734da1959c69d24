//! The command line.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use rustix::time::Timespec;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// JSON in a WebSocket; subscribed by a JSON-RPC call where `--subscribe` is given, else by being connected.
    WebSocket,
    /// JSON in a WebSocket, subscribed by Centrifugo's two commands.
    Centrifugo,
    /// Server-Sent Events; a viewer is subscribed by its request.
    Events,
    Redis,
    Nats,
}

/// What to connect to, and how often.
#[derive(Debug)]
pub struct Options {
    pub address: SocketAddrV4,
    pub protocol: Protocol,
    pub connections: usize,
    /// The `Host` header.
    pub host: String,
    pub path: String,
    /// JSON of `subscribe`'s params, a `%` in it standing for the number of the viewer's program.
    pub subscribe: Option<String>,
    /// Programs that the viewers are spread over.
    pub programs: usize,
    /// Loopback addresses to connect from; each has about 28,000 ports.
    pub sources: u32,
    /// The first of them, counted from 127.0.0.1.
    pub first_source: u32,
    /// Each so-many-th viewer asks for compression; 0: none.
    pub deflate_every: usize,
    /// How long the server may be silent while connections open.
    pub timeout: Timespec,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Names the argument that is missing or wrong.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let address = arguments
            .next()
            .ok_or("usage: load ADDRESS --connections N …")?;
        let SocketAddr::V4(address) = address.parse()? else {
            return Err("ADDRESS must be IPv4".into());
        };
        let mut options = Self {
            address,
            protocol: Protocol::WebSocket,
            connections: 1,
            host: address.to_string(),
            path: "/api/v1/ws".to_owned(),
            subscribe: None,
            programs: 1,
            sources: 1,
            first_source: 0,
            deflate_every: 0,
            timeout: Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            },
        };
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--protocol" => options.protocol = parse_protocol(&value)?,
                "--connections" => options.connections = value.parse()?,
                "--host" => options.host = value,
                "--path" => options.path = value,
                "--subscribe" => options.subscribe = Some(value),
                "--programs" => options.programs = value.parse::<usize>()?.max(1),
                "--sources" => options.sources = value.parse::<u32>()?.clamp(1, 1 << 16),
                "--first-source" => options.first_source = value.parse::<u32>()?.min(1 << 16),
                "--deflate-every" => options.deflate_every = value.parse()?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(options)
    }

    /// The address that connection `index` comes from: in 127.0.0.0/8, or the system's choice for another host.
    #[must_use]
    pub fn source(&self, index: usize) -> SocketAddrV4 {
        if !self.address.ip().is_loopback() {
            return SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        }
        let turn = u32::try_from(index).unwrap_or(u32::MAX) % self.sources + self.first_source;
        SocketAddrV4::new(Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + turn), 0)
    }

    /// Whether connection `index` asks for compression.
    #[must_use]
    pub fn deflates(&self, index: usize) -> bool {
        index.checked_rem(self.deflate_every) == Some(0)
    }

    /// The request for the event stream of connection `index`, which has had everything up to `seq`; 0: nothing.
    #[must_use]
    pub fn request(&self, index: usize, seq: u64) -> String {
        let path = self.path.replace('%', &(index % self.programs).to_string());
        let since = if seq > 0 {
            format!("?since=bench:{seq}")
        } else {
            String::new()
        };
        format!("GET {path}{since} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host)
    }

    /// The JSON-RPC call that subscribes connection `index`, which has had everything up to `seq`; 0: nothing.
    #[must_use]
    pub fn call(&self, index: usize, seq: u64) -> Option<String> {
        let params = self.subscribe.as_ref()?;
        let mut params = params.replace('%', &(index % self.programs).to_string());
        if seq > 0 {
            let since = format!(r#","since":{{"epoch":"bench","seq":{seq}}}}}"#);
            params.replace_range(params.len() - 1.., &since);
        }
        Some(format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{params}}}"#
        ))
    }
}

fn parse_protocol(name: &str) -> Result<Protocol, String> {
    match name {
        "websocket" => Ok(Protocol::WebSocket),
        "centrifugo" => Ok(Protocol::Centrifugo),
        "events" => Ok(Protocol::Events),
        "redis" => Ok(Protocol::Redis),
        "nats" => Ok(Protocol::Nats),
        _ => Err(format!("unknown protocol {name}")),
    }
}
