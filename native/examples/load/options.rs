//! The command line.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use rustix::time::Timespec;

/// What to connect to, and how often.
#[derive(Debug)]
pub struct Options {
    pub address: SocketAddrV4,
    pub connections: usize,
    /// The `Host` header.
    pub host: String,
    pub path: String,
    /// JSON of `subscribe`'s params; without it nothing is sent and a viewer is ready once it is open.
    pub subscribe: Option<String>,
    /// Loopback addresses to connect from; each has about 28,000 ports.
    pub sources: u32,
    pub deflate: bool,
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
            connections: 1,
            host: address.to_string(),
            path: "/api/v1/ws".to_owned(),
            subscribe: None,
            sources: 1,
            deflate: false,
            timeout: Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            },
        };
        while let Some(name) = arguments.next() {
            if name == "--deflate" {
                options.deflate = true;
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--connections" => options.connections = value.parse()?,
                "--host" => options.host = value,
                "--path" => options.path = value,
                "--subscribe" => options.subscribe = Some(value),
                "--sources" => options.sources = value.parse::<u32>()?.clamp(1, 1 << 16),
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(options)
    }

    /// The address that connection `index` comes from, in 127.0.0.0/8.
    #[must_use]
    pub fn source(&self, index: usize) -> SocketAddrV4 {
        let turn = u32::try_from(index).unwrap_or(u32::MAX) % self.sources;
        SocketAddrV4::new(Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + turn), 0)
    }
}
