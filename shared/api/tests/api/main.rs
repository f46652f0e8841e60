//! The routes as a client sees them, over an engine on the memory store. Time is simulated: nothing here sleeps for
//! real or looks at a clock, except where a socket is what is tested.

mod bad_input;
mod consume;
mod operate;
mod produce;
mod reads;
mod service;
mod streams;
mod support;
mod transactions;
