//! The cloud's services behind the library's traits.
//!
//! [`Environment`] is what a process is told, [`open`] makes the store of it. The other services are features of this
//! crate, so that a function links only those that it calls.

pub mod environment;
#[cfg(feature = "keys")]
pub mod keys;
mod open;

pub use crate::{
    environment::{Environment, EnvironmentError},
    open::{OpenError, Opened, open},
};
