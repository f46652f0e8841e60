//! Simulation and checkers: the promises of the design, each with a test that can fail.

pub mod price;
pub mod sim;
