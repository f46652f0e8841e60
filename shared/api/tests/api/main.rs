//! The routes as a client sees them, over an engine on the memory store; `tests/embedded` runs the same tests on the
//! embedded one. A test whose name ends with `s` and a number is that scenario of the Queen contract. Time is simulated: nothing here sleeps for
//! real or looks at a clock, except where a socket is what is tested.

mod access;
mod administer;
mod bad_input;
mod consume;
mod control;
mod control_crash;
mod keys;
mod operate;
mod produce;
mod reads;
mod service;
mod store;
mod streams;
mod support;
mod transactions;
