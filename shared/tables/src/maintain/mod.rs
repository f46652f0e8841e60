//! Maintenance: what streams and their tables need done beside pushing and popping, in pieces.
//!
//! [`Maintenance::find`] says which [`Work`] is due; [`Maintenance::run`] does one piece of it, and stops before a given
//! time with the rest of the work in its hand. So the local stack does everything in one loop, and in the cloud a
//! schedule finds the work, a queue carries it, and as many functions as there is work do it side by side.
//!
//! Every piece may be done twice, at the same time, or be cut off anywhere: whatever it changes is one conditional
//! write on a head, and what it leaves behind is garbage. Nothing here waits for other work or takes a lock that
//! outlives the process.

mod find;
mod run;
mod work;

use tidewheel_engine::Engine;

pub use self::{
    find::{Found, Lag},
    run::{Done, Error, Outcome},
    work::Work,
};
use crate::Tables;

/// The maintenance of an engine's streams and of their tables. Cheap to clone.
#[derive(Clone)]
pub struct Maintenance {
    engine: Engine,
    tables: Tables,
}

impl Maintenance {
    /// The maintenance of these streams and tables.
    pub fn new(engine: &Engine, tables: &Tables) -> Self {
        Self { engine: engine.clone(), tables: tables.clone() }
    }

    /// The streams.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Their tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}
