//! Tests of the protocol: edges one by one, then properties against slow obvious models.

mod decoder;
mod deflate;
mod frame;
mod handshake;
mod json;
mod jsonrpc;
mod proxy;
mod strict;
