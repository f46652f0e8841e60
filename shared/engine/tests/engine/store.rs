//! The store under test: memory.

pub(crate) type TestStore = tidewheel_store::Memory;
