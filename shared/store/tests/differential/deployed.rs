//! The deployed store beside the two local ones: the same answers, and the bill that the memory store predicts.
//!
//! The emulator reports what a request consumed by the published rules, so each step's units are compared with those of
//! the memory store, exactly. Three figures are not the emulator's and are left out or bounded: a refusal's (no reply of
//! the service says what it cost; the store applies the published rule, which is compared too), a cancelled
//! transaction's (its items do not all come with the reply, so the store's figure is a lower bound), and a listing's
//! (it reads eight shards a little ahead, and the memory store bills what was listed).

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tidewheel_store::{
    Action, Change, Commit, DynamoDb, Embedded, Memory, Query, Store, Write, embedded::Options,
    meter::Units,
};

use crate::{
    emulator::Place,
    steps::{Step, answer, give_up_blobs, step},
};

/// Histories, and steps in each.
const SEEDS: u8 = 6;
const STEPS: usize = 250;

/// Histories of a seed.
fn history(seed: u8) -> Vec<Step> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let steps = proptest::collection::vec(step(), STEPS..=STEPS);
    let tree = steps.new_tree(&mut runner).expect("a history");
    tree.current().into_iter().map(creating).collect()
}

/// The same step with updates that create an item in every reading: whether one that only removes does is left open.
fn creating(step: Step) -> Step {
    let Step::Commit(mut commit) = step else { return step };
    let transaction = commit.writes.len() > 1;
    for write in &mut commit.writes {
        if let Action::Update(changes) = &mut write.action {
            let removes = |c: &Change| matches!(c, Change::Remove(_) | Change::Exclude(..));
            if changes.iter().all(removes) && (transaction || !changes.is_empty()) {
                changes.push(Change::Set("made".into(), true.into()));
            }
        }
    }
    Step::Commit(commit)
}

fn is_transaction(commit: &Commit) -> bool {
    let checks = |w: &Write| w.action == Action::Check;
    commit.writes.len() > 1 || commit.writes.iter().any(checks)
}

/// Compares what a step cost. `answer` is what it was answered.
fn same_bill(step: &Step, answer: &str, predicted: Units, billed: Units, at: &str) {
    match step {
        // The fault that only the item shows is looked for by a read.
        Step::Commit(_) if answer.starts_with("Err(Invalid") => {}
        Step::Commit(commit) if !answer.starts_with("Ok") && is_transaction(commit) => {
            assert!(billed.write_units <= predicted.write_units, "{at}: {billed:?}");
            assert!(billed.write_units > 0.0, "{at}: {billed:?}");
        }
        Step::ListBlobs(_, limit) if *limit > 0 => {
            assert!(billed.read_units >= predicted.read_units.min(0.5), "{at}: {billed:?}");
            assert_eq!(billed.blob_lists, predicted.blob_lists, "{at}");
        }
        _ => assert_eq!(billed, predicted, "{at}"),
    }
}

async fn agree(seed: u8) {
    let memory = Memory::new();
    let deployed: DynamoDb = Place::make().await.store();
    let dir = tempfile::tempdir().expect("a folder");
    let embedded = Embedded::open(dir.path(), Options::default()).expect("a store");
    let (mut refused, mut transactions) = (0, 0);
    for (n, step) in history(seed).iter().enumerate() {
        let at = format!("seed {seed}, step {n}: {step:?}");
        let before = (memory.meter(), deployed.meter());
        let due = answer(&memory, step).await;
        assert_eq!(due, answer(&embedded, step).await, "embedded, {at}");
        assert_eq!(due, answer(&deployed, step).await, "deployed, {at}");
        same_bill(step, &due, memory.meter() - before.0, deployed.meter() - before.1, &at);
        if let Step::Commit(commit) = step {
            refused += u32::from(!due.starts_with("Ok"));
            transactions += u32::from(is_transaction(commit));
        }
        if !due.starts_with("Ok") {
            for store in [&memory as &dyn Store, &embedded, &deployed] {
                give_up_blobs(store, step).await;
            }
        }
    }
    assert!(refused > 20 && transactions > 50, "{refused} refused, {transactions} transactions");
    for pk in ["p", "q"] {
        let all = Step::Query(Query::all(pk));
        assert_eq!(answer(&memory, &all).await, answer(&deployed, &all).await, "seed {seed}");
    }
    for name in memory.list_blobs("o", None, 100).await.expect("a list") {
        let read = Step::Blob(name, None);
        assert_eq!(answer(&memory, &read).await, answer(&deployed, &read).await, "seed {seed}");
    }
}

#[tokio::test]
#[ignore = "needs the emulators: tests/run emulator"]
async fn memory_embedded_and_the_deployed_store_agree() {
    for seed in 0..SEEDS {
        agree(seed).await;
    }
}
