//! Simulation, conformance and real clients.
