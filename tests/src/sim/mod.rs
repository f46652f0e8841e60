//! A deterministic simulation of the whole engine under faults.
//!
//! Several simulated *processes* run the real engine and the real sealer over one store in memory, each through a
//! [`Faulty`](tidewheel_store::Faulty) wrapper of its own that refuses, loses, delays and repeats, with a clock of its
//! own that is off by up to a few hundred milliseconds. They are killed and started anew all the time; their workers
//! freeze between two steps and go on minutes later. Everything runs as tasks on one thread under a paused clock, and
//! all chance comes from one seed, so **a seed is a history**.
//!
//! A run is: a storm, a night (long enough for the collector's grace to pass over what was frozen), a second storm, and
//! then good weather, in which everything that was left must drain. What every client saw is kept in a [`History`]; at
//! the end the [`checks`] compare it with what is stored. To know that the checkers can fail, a [`Sabotage`] plants a
//! bug at the store's boundary, and some seed must show it.
//!
//! The simulation asserts nothing about speed. It never sleeps for real.

pub mod checks;
mod consumer;
pub mod history;
mod keeper;
mod process;
mod processor;
mod producer;
mod publisher;
mod reader;
pub mod sabotage;
mod sealer;
mod transactor;
mod world;

pub use checks::Violation;
pub use history::History;
pub use process::Process;
pub use sabotage::Sabotage;
pub use world::{Outcome, START_US, World, run, run_traced};
