//! The live gateway on the memory store, with a managed gateway that does as it is told.

mod world;

mod costs;
mod deaths;
mod native;
mod posts;
mod storms;
mod streamcast;
