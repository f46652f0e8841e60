//! The engine: what a producer, a consumer and a stream processor notice. Time is paused; the runtime moves it when
//! nothing else can run.
//!
//! A test whose name ends with `s` and a number is that scenario of the Queen contract. Everything but `costs` and `crowd`
//! runs on the memory store here and on the embedded one in `tests/embedded`.

mod fixture;
mod store;

mod claims;
mod consume;
mod costs;
mod crowd;
mod cycles;
mod declared;
mod doubt;
mod encryption;
mod kv;
mod live;
mod maintenance;
mod produce;
mod publishers;
mod reads;
mod scenarios;
mod standing;
mod storms;
mod timers;
mod traces;
mod transactions;
