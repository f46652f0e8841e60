//! The cloud's services behind the library's traits.
//!
//! [`Environment`] is what a process is told, [`open`] makes the store of it. The other services are features of this
//! crate, so that a function links only those that it calls.

mod check;
#[cfg(feature = "doorbell")]
mod doorbell;
pub mod environment;
#[cfg(any(feature = "doorbell", feature = "glue", feature = "posts"))]
mod failure;
#[cfg(feature = "glue")]
mod glue;
#[cfg(feature = "keys")]
pub mod keys;
#[cfg(feature = "objects")]
mod objects;
mod open;
#[cfg(feature = "posts")]
mod posts;
#[cfg(feature = "queues")]
mod queue;
#[cfg(all(test, any(feature = "doorbell", feature = "posts")))]
mod test_server;

#[cfg(feature = "doorbell")]
pub use crate::doorbell::Fanout;
#[cfg(feature = "glue")]
pub use crate::glue::{Glue, table_name};
#[cfg(feature = "objects")]
pub use crate::objects::{ObjectsError, objects, objects_uri};
#[cfg(feature = "posts")]
pub use crate::posts::Posts;
#[cfg(feature = "queues")]
pub use crate::queue::{Queue, SendError};
pub use crate::{
    check::{Unusable, check},
    environment::{Environment, EnvironmentError},
    open::{OpenError, Opened, open},
};
