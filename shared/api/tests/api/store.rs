//! The store under the server: memory.

pub(crate) type TestStore = tidewheel_store::Memory;
