//! The same tests as those of the engine on the memory store, on the embedded one. What an operation costs is told
//! there.

#[path = "../engine/fixture.rs"]
mod fixture;
mod store;

#[path = "../engine/claims.rs"]
mod claims;
#[path = "../engine/consume.rs"]
mod consume;
#[path = "../engine/cycles.rs"]
mod cycles;
#[path = "../engine/declared.rs"]
mod declared;
#[path = "../engine/doubt.rs"]
mod doubt;
#[path = "../engine/kv.rs"]
mod kv;
#[path = "../engine/maintenance.rs"]
mod maintenance;
#[path = "../engine/produce.rs"]
mod produce;
#[path = "../engine/publishers.rs"]
mod publishers;
#[path = "../engine/reads.rs"]
mod reads;
#[path = "../engine/scenarios.rs"]
mod scenarios;
#[path = "../engine/standing.rs"]
mod standing;
#[path = "../engine/storms.rs"]
mod storms;
#[path = "../engine/timers.rs"]
mod timers;
#[path = "../engine/traces.rs"]
mod traces;
#[path = "../engine/transactions.rs"]
mod transactions;
