//! Runs seeds of the simulation and says what they found.
//!
//! ```text
//! cargo run --release -p tidewheel-tests --bin simulate -- --seeds 1000
//! cargo run --release -p tidewheel-tests --bin simulate -- --seed 42
//! cargo run --release -p tidewheel-tests --bin simulate -- --seeds 50 --sabotage SealTwice
//! ```

use std::{collections::BTreeMap, process::ExitCode, sync::mpsc, thread};

use clap::Parser;
use tidewheel_tests::sim::{self, Outcome, Sabotage};

#[derive(Parser)]
#[command(about = "Simulates processes, faults and workloads by a seed, and checks every promise.")]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Runs this seed only, twice, and shows all of it.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: also tells what happened to a group on a partition, as `group@stream/partition`.
    #[arg(long)]
    trace: Option<String>,
    /// Plants a bug; the run succeeds when some seed catches it. `all` plants one after another.
    #[arg(long)]
    sabotage: Option<String>,
    /// Threads, each with seeds of its own.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let bugs = match options.sabotage.as_deref() {
        None => vec![None],
        Some("all") => Sabotage::ALL.into_iter().map(Some).collect(),
        Some(name) => match Sabotage::parse(name) {
            Some(bug) => vec![Some(bug)],
            None => {
                let known: Vec<String> = Sabotage::ALL.iter().map(|s| s.name()).collect();
                eprintln!("no planted bug `{name}`; there are {}", known.join(", "));
                return ExitCode::FAILURE;
            }
        },
    };
    if let Some(seed) = options.seed {
        return one(seed, bugs[0], options.trace.as_deref());
    }
    let mut good = true;
    for bug in bugs {
        good &= match bug {
            None => clean(&options),
            Some(bug) => caught(&options, bug),
        };
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, bug: Option<Sabotage>, trace: Option<&str>) -> ExitCode {
    let of = trace.and_then(|t| {
        let (group, rest) = t.split_once('@')?;
        let (stream, partition) = rest.split_once('/')?;
        Some((group, stream, partition))
    });
    let (first, second) = (sim::run_traced(seed, bug, of), sim::run(seed, bug));
    first.trace.iter().for_each(|line| println!("{line}"));
    print_counts(&first.counts);
    for violation in &first.violations {
        println!("{violation}");
    }
    println!(
        "seed {seed}: {} violations, history {:016x}",
        first.violations.len(),
        first.fingerprint
    );
    if first.fingerprint != second.fingerprint {
        println!("seed {seed} gave another history the second time: {:016x}", second.fingerprint);
        return ExitCode::FAILURE;
    }
    if first.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds on some threads; each seed is a world of its own. Calls back in the order in which they end.
fn each(options: &Options, bug: Option<Sabotage>, mut then: impl FnMut(Outcome) -> bool) {
    let (send, receive) = mpsc::channel();
    let threads = options.threads.max(1);
    thread::scope(|scope| {
        for thread in 0..threads {
            let send = send.clone();
            scope.spawn(move || {
                for seed in
                    (options.from + thread..options.from + options.seeds).step_by(threads as usize)
                {
                    if send.send(sim::run(seed, bug)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        while let Ok(outcome) = receive.recv() {
            if !then(outcome) {
                break;
            }
        }
        drop(receive);
    });
}

fn clean(options: &Options) -> bool {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut ran, mut broken) = (0u64, Vec::new());
    each(options, None, |outcome| {
        ran += 1;
        for (what, n) in &outcome.counts {
            *counts.entry(what).or_default() += n;
        }
        if !outcome.violations.is_empty() {
            for violation in outcome.violations.iter().take(10) {
                println!("seed {}: {violation}", outcome.seed);
            }
            println!("seed {}: again with\n  {}", outcome.seed, outcome.replay(None));
            broken.push(outcome.seed);
        }
        if ran.is_multiple_of(50) {
            println!("{ran} of {} seeds, {} broken", options.seeds, broken.len());
        }
        true
    });
    print_counts(&counts);
    println!(
        "{ran} seeds; checked: log, queue, streams, transactions, dead letters, tables, publishers, garbage, wake-up; broken: {broken:?}"
    );
    broken.is_empty()
}

fn caught(options: &Options, bug: Sabotage) -> bool {
    // The panics of a broken engine are expected here.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut ran, mut by) = (0u64, None);
    each(options, Some(bug), |outcome| {
        ran += 1;
        if let Some(violation) = outcome.violations.first() {
            by = Some(format!("seed {}: {violation}", outcome.seed));
        }
        by.is_none()
    });
    let _ = std::panic::take_hook();
    match &by {
        Some(by) => println!("{}: caught after {ran} seeds. {by}", bug.name()),
        None => println!("{}: NOT caught by {ran} seeds", bug.name()),
    }
    by.is_some()
}

fn print_counts(counts: &BTreeMap<&'static str, u64>) {
    for (what, n) in counts {
        println!("{n:>10}  {what}");
    }
}
