//! The same tests as those of the routes on the memory store, on the embedded one.

#[path = "../../../engine/tests/embedded/store.rs"]
mod store;
#[path = "../api/support.rs"]
mod support;

#[path = "../api/access.rs"]
mod access;
#[path = "../api/administer.rs"]
mod administer;
#[path = "../api/bad_input.rs"]
mod bad_input;
#[path = "../api/consume.rs"]
mod consume;
#[path = "../api/control.rs"]
mod control;
#[path = "../api/keys.rs"]
mod keys;
#[path = "../api/operate.rs"]
mod operate;
#[path = "../api/produce.rs"]
mod produce;
#[path = "../api/reads.rs"]
mod reads;
#[path = "../api/service.rs"]
mod service;
#[path = "../api/streams.rs"]
mod streams;
#[path = "../api/transactions.rs"]
mod transactions;
