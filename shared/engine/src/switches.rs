//! Switches with which an operator pauses a whole installation: pushes are refused, pops find nothing.
//!
//! They are one item in the store, which every process reads again after [`KNOWN_US`]. So a pause is answered only when
//! that time is over: after the answer no process lets anything through. Acknowledgements, reads and administration go
//! on: what was delivered can still be settled.

use std::time::Duration;

use parking_lot::Mutex;
use tidewheel_store::{Change, Commit, CommitError, Write};

use crate::{Engine, Error, keys};

/// How long a process goes by what it has read, µs.
const KNOWN_US: i64 = 1_000_000;

/// What is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Nothing new gets in: pushes, transactions that push, cycles that write to a sink.
    pub push_paused: bool,
    /// Pops find nothing.
    pub pop_paused: bool,
}

/// What a process has read of the switches, and when.
#[derive(Default)]
pub(crate) struct KnownSwitches(Mutex<Option<(Switches, i64)>>);

impl Engine {
    /// Reads the switches.
    pub async fn switches(&self) -> Result<Switches, Error> {
        let item = self.get(&keys::switches()).await?;
        let on = |name: &str| item.as_ref().and_then(|i| i.bool(name)).unwrap_or(false);
        let switches = Switches { push_paused: on("push_paused"), pop_paused: on("pop_paused") };
        *self.inner.switches.0.lock() = Some((switches, self.env().now_us()));
        Ok(switches)
    }

    /// The switches as they were at most [`KNOWN_US`] ago.
    pub(crate) async fn known_switches(&self) -> Result<Switches, Error> {
        let now_us = self.env().now_us();
        let known = *self.inner.switches.0.lock();
        match known.filter(|(_, read_us)| (now_us - read_us).abs() < KNOWN_US) {
            Some((switches, _)) => Ok(switches),
            None => self.switches().await,
        }
    }

    /// # Errors
    /// [`Error::Paused`] while pushes are paused.
    pub(crate) async fn check_push_allowed(&self) -> Result<(), Error> {
        match self.known_switches().await?.push_paused {
            true => Err(Error::Paused("pushing")),
            false => Ok(()),
        }
    }

    /// Pauses pushes, or lets them go on. Answers the switches as they are then.
    ///
    /// # Errors
    /// Those of the store; the switch may have been set or not when the outcome is unknown.
    pub async fn pause_push(&self, paused: bool) -> Result<Switches, Error> {
        self.switch("push_paused", paused).await
    }

    /// Pauses pops, or lets them go on. Answers the switches as they are then.
    ///
    /// # Errors
    /// As [`Engine::pause_push`].
    pub async fn pause_pop(&self, paused: bool) -> Result<Switches, Error> {
        self.switch("pop_paused", paused).await
    }

    async fn switch(&self, name: &str, on: bool) -> Result<Switches, Error> {
        let set = Change::Set(name.into(), on.into());
        match self.commit(Commit::one(Write::update(keys::switches(), vec![set]))).await {
            Ok(_) => {}
            Err(CommitError::Unknown(e)) => {
                self.switches().await?;
                return Err(Error::Unknown(e));
            }
            Err(e) => return Err(e.into()),
        }
        let switches = self.switches().await?;
        tracing::warn!(switch = name, on, "an operator has set a switch");
        if on {
            self.env().sleep(Duration::from_micros(KNOWN_US as u64)).await;
        }
        Ok(switches)
    }
}
