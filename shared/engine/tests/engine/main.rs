//! The engine on the memory store: what a producer, a consumer and a stream processor notice. Time is paused; the
//! runtime moves it when nothing else can run.

mod fixture;

mod consume;
mod cycles;
mod doubt;
mod maintenance;
mod produce;
mod transactions;
