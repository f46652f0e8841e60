//! The simulation: some seeds that must be good, a seed that must give the same history twice, and planted bugs that
//! must be found.
//!
//! `SIM_SEEDS` sets how many seeds are run, `SIM_FROM` where they begin, `SIM_SEED` runs one alone. For thousands of
//! seeds use the program: `cargo run --release -p tidewheel-tests --bin simulate -- --seeds 1000`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use tidewheel_tests::sim::{self, Sabotage};

/// Seeds of one test run.
const SEEDS: u64 = 16;

/// Seeds that once broke something, and what it was. They stay.
const ONCE_BROKEN: [(u64, &str); 5] = [
    (3, "ids in a page that another process had rolled were taken for new"),
    (4, "a push was answered with nothing was written, and arrived later"),
    (20, "a seek moved a position and died before it woke the group"),
    (135, "a push took its own late copy for another's and appended the rest again"),
    (9, "a lease over several partitions was refused after the first was done"),
];

/// Seeds within which a planted bug must be caught.
const CAUGHT_WITHIN: u64 = 50;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds on two threads; answers what was wrong.
fn run(seeds: &[u64]) -> Vec<String> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let outcome = sim::run(*seed, None);
            for violation in &outcome.violations {
                wrong.push(format!("seed {seed}: {violation}"));
            }
            if !outcome.violations.is_empty() {
                wrong.push(format!("again with: {}", outcome.replay(None)));
            }
        }
        wrong
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().expect("a thread")).collect()
    })
}

#[test]
fn no_seed_breaks_a_promise() {
    let seeds: Vec<u64> = match number("SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let from = number("SIM_FROM").unwrap_or(1);
            (from..from + number("SIM_SEEDS").unwrap_or(SEEDS)).collect()
        }
    };
    let wrong = run(&seeds);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn seeds_that_were_broken_once_are_good() {
    let wrong = run(&ONCE_BROKEN.map(|(seed, _)| seed));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_seed_is_a_history() {
    let (first, second) = (sim::run(7, None), sim::run(7, None));
    assert_eq!(first.counts, second.counts);
    assert_eq!(first.fingerprint, second.fingerprint, "the same seed gave another history");
    assert_ne!(first.fingerprint, sim::run(8, None).fingerprint, "another seed gave the same");
}

/// Asserts that some seed finds a planted bug, and that a checker of these names is what finds it.
fn caught(bug: Sabotage, checkers: &[&str]) {
    for seed in 0..CAUGHT_WITHIN {
        let outcome = sim::run(seed, Some(bug));
        if let Some(found) = outcome.violations.iter().find(|v| checkers.contains(&v.check)) {
            println!("{} was caught by seed {seed}: {found}", bug.name());
            return;
        }
    }
    panic!("{} was not caught by {CAUGHT_WITHIN} seeds", bug.name());
}

macro_rules! planted {
    ($($test:ident: $bug:ident by $($checker:literal)|+;)*) => {
        $(#[test] fn $test() { caught(Sabotage::$bug, &[$($checker),+]); })*
    };
}

planted! {
    a_dropped_lease_check_is_caught: DropLeaseCheck by "queue" | "streams" | "transactions";
    an_ack_before_its_commit_is_caught: AckBeforeCommit by "streams" | "transactions" | "dead_letters";
    a_skipped_id_check_is_caught: SkipIdCheck by "log";
    sealing_twice_is_caught: SealTwice by "tables";
    a_blind_seal_is_caught: SealBlindly by "tables";
    ignored_sleepers_are_caught: IgnoreSleepers by "wake-up";
    a_forgotten_ready_entry_is_caught: ForgetReady by "wake-up";
    falling_asleep_blindly_is_caught: SleepBlindly by "wake-up";
    a_lost_reply_taken_for_a_failure_is_caught: UnknownIsFailure by "log" | "queue" | "streams" | "transactions";
    a_forgotten_mark_is_caught: ForgetMark by "garbage" | "errors" | "log";
    lost_state_is_caught: LoseState by "streams";
    a_roll_that_keeps_the_generation_is_caught: RollKeepsGeneration by "log";
    a_lost_page_is_caught: LosePage by "log" | "garbage" | "errors";
    a_dropped_dead_letter_is_caught: DropDeadLetter by "dead_letters";
    a_head_before_its_blob_is_caught: BlobAfterHead by "garbage" | "errors" | "log";
    a_skipped_publishers_mark_is_caught: SkipPublisherMark by "publishers";
    a_skipped_epoch_is_caught: SkipEpoch by "publishers";
    a_floor_that_runs_ahead_is_caught: FloorRunsAhead by "tables" | "queue" | "log";
}
