//! Time, randomness and ids come in through one [`Env`]; nothing else reads a clock or rolls a die.
//!
//! A real process takes the system's clock and the system's entropy. A simulation takes a seed and the runtime's
//! paused clock, with a skew for each simulated process, and then the same seed gives the same history.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

/// Where time and chance come from. Cheap to clone; clones share the stream of chance.
#[derive(Clone)]
pub struct Env {
    source: Arc<Source>,
}

enum Source {
    System,
    Simulated {
        start: tokio::time::Instant,
        start_us: i64,
        skew_us: i64,
        rng: Mutex<fastrand::Rng>,
    },
}

impl Env {
    /// The system's clock and entropy.
    pub fn system() -> Self {
        Self { source: Arc::new(Source::System) }
    }

    /// A clock that starts at `start_us` and moves with the runtime's (paused) clock, off by `skew_us`; and chance
    /// from a seed.
    pub fn simulated(seed: u64, start_us: i64, skew_us: i64) -> Self {
        Self {
            source: Arc::new(Source::Simulated {
                start: tokio::time::Instant::now(),
                start_us,
                skew_us,
                rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            }),
        }
    }

    /// Microseconds since 1970 in UTC.
    #[allow(clippy::disallowed_methods)] // the one place that reads the clock
    pub fn now_us(&self) -> i64 {
        match &*self.source {
            Source::System => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_micros() as i64),
            Source::Simulated { start, start_us, skew_us, .. } => {
                start_us + skew_us + start.elapsed().as_micros() as i64
            }
        }
    }

    /// 64 bits that nobody can guess (or, from a seed, that everybody can repeat).
    pub fn random(&self) -> u64 {
        match &*self.source {
            Source::System => getrandom::u64().unwrap_or_else(|_| fallback_entropy()),
            Source::Simulated { rng, .. } => rng.lock().u64(..),
        }
    }

    /// A number below `bound`, or 0 if the bound is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.random() % bound }
    }

    /// 128 random bits as 32 hexadecimal digits.
    pub fn token(&self) -> String {
        format!("{:016x}{:016x}", self.random(), self.random())
    }

    /// Waits. Under a paused clock the time passes at once when nothing else can run.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.source {
            Source::System => f.write_str("Env::System"),
            Source::Simulated { skew_us, .. } => write!(f, "Env::Simulated(skew {skew_us} us)"),
        }
    }
}

/// The system's entropy can fail only before the kernel has gathered any; the hasher's keys come from the same place
/// by another way and never fail.
fn fallback_entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}
