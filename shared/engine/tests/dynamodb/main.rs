//! The same tests as those of the engine on the memory store, on the deployed one, whose services are emulated. What an
//! operation costs is what the emulator says that it consumed.

#[path = "../../../store/tests/emulator/mod.rs"]
mod emulator;
#[path = "../engine/fixture.rs"]
mod fixture;
mod store;

mod crashes;

#[path = "../engine/claims.rs"]
mod claims;
#[path = "../engine/consume.rs"]
mod consume;
#[path = "../engine/costs.rs"]
mod costs;
#[path = "../engine/cycles.rs"]
mod cycles;
#[path = "../engine/declared.rs"]
mod declared;
#[path = "../engine/doubt.rs"]
mod doubt;
#[path = "../engine/encryption.rs"]
mod encryption;
#[path = "../engine/kv.rs"]
mod kv;
#[path = "../engine/live.rs"]
mod live;
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
