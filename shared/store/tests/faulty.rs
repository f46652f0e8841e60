//! What the faulty store promises to those who test with it.

use std::{sync::Arc, time::Duration};

use tidewheel_store::{
    Blob, Change, Commit, CommitError, Condition, Consistency, Env, Faulty, Item, Key, Memory,
    ReadError, Store, Write,
    faulty::{Crash, Plan},
};

fn env(seed: u64) -> Env {
    Env::simulated(seed, 1_700_000_000_000_000, 0)
}

fn key() -> Key {
    Key::new("p", "head")
}

fn add() -> Write {
    Write::update(key(), vec![Change::Add("n".into(), 1)])
}

fn with_blob(env: &Env) -> Commit {
    Commit::one(add()).with_blob(Blob::fresh("p", "a body", env))
}

async fn count(store: &dyn Store) -> i64 {
    let item = store.get(&key(), Consistency::Strong).await.expect("a read");
    item.and_then(|i| i.int("n")).unwrap_or(0)
}

fn only(set: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan::none();
    set(&mut plan);
    plan
}

#[tokio::test(start_paused = true)]
async fn without_faults_it_only_counts() {
    let memory = Memory::new();
    let faulty = Faulty::new(Arc::new(memory.clone()), Plan::none(), env(1));
    for n in 1..=10 {
        let image = faulty.commit(Commit::one(add())).await.expect("no fault").image;
        assert_eq!(image, Some(Item::new().with("n", n)));
    }
    assert_eq!((faulty.calls(), faulty.faults().len()), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn each_fault_does_what_it_says() {
    let made = |plan| {
        let memory = Memory::new();
        (Faulty::new(Arc::new(memory.clone()), plan, env(2)), memory)
    };
    let (faulty, memory) = made(only(|p| p.refuse = 1.0));
    assert!(matches!(faulty.commit(Commit::one(add())).await, Err(CommitError::Unavailable(_))));
    assert_eq!(count(&memory).await, 0);

    let (faulty, memory) = made(only(|p| p.throttle = 1.0));
    assert_eq!(faulty.commit(Commit::one(add())).await, Err(CommitError::Throttled));
    assert_eq!(count(&memory).await, 0);

    let (faulty, memory) = made(only(|p| p.contend = 1.0));
    assert_eq!(faulty.commit(Commit::one(add())).await, Err(CommitError::Contended));
    assert_eq!(count(&memory).await, 0);

    let (faulty, memory) = made(only(|p| p.lose_reply = 1.0));
    assert!(matches!(faulty.commit(Commit::one(add())).await, Err(CommitError::Unknown(_))));
    assert_eq!(count(&memory).await, 1);

    let (faulty, memory) = made(only(|p| p.lose_request = 1.0));
    assert!(matches!(faulty.commit(Commit::one(add())).await, Err(CommitError::Unknown(_))));
    assert_eq!(count(&memory).await, 0);

    let (faulty, _) = made(only(|p| p.refuse_read = 1.0));
    assert!(matches!(
        faulty.get(&key(), Consistency::Strong).await,
        Err(ReadError::Unavailable(_))
    ));
    let (faulty, _) = made(only(|p| p.throttle_read = 1.0));
    assert_eq!(faulty.batch_get(&[key()]).await, Err(ReadError::Throttled));
}

#[tokio::test(start_paused = true)]
async fn late_commits_arrive_within_their_calls() {
    let memory = Memory::new();
    let plan = only(|p| (p.late, p.late_calls) = (1.0, 5));
    let faulty = Faulty::new(Arc::new(memory.clone()), plan, env(3));
    for _ in 0..20 {
        let answer = faulty.commit(with_blob(&env(4))).await;
        assert!(matches!(answer, Err(CommitError::Unknown(_))), "{answer:?}");
    }
    let arrived = count(&memory).await;
    assert!((15..20).contains(&arrived), "{arrived} of 20 arrived, {} are late", faulty.late());
    assert_eq!(faulty.late() as i64, 20 - arrived);
    faulty.settle().await;
    assert_eq!(count(&memory).await, 20);
}

/// A late commit is judged when it arrives, not when it was sent.
#[tokio::test(start_paused = true)]
async fn a_late_commit_meets_the_items_of_its_arrival() {
    let memory = Memory::new();
    let faulty = Faulty::new(Arc::new(memory.clone()), only(|p| p.late = 1.0), env(5));
    let create = Write::put(key(), Item::new().with("n", 7)).when(Condition::Absent);
    assert!(faulty.commit(Commit::one(create)).await.is_err());
    memory.commit(Commit::one(add())).await.expect("another was faster");
    faulty.settle().await;
    assert_eq!(count(&memory).await, 1);
}

/// The frozen writer: its blob is there, is collected while it sleeps, and only then do its writes arrive.
#[tokio::test(start_paused = true)]
async fn late_writes_may_come_without_their_blobs() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..50 {
        let memory = Memory::new();
        let faulty = Faulty::new(Arc::new(memory.clone()), only(|p| p.late = 1.0), env(seed));
        assert!(faulty.commit(with_blob(&env(seed))).await.is_err());
        let names: Vec<_> = memory.blobs().into_keys().collect();
        memory.delete_blobs(&names).await.expect("a delete");
        faulty.settle().await;
        assert_eq!(count(&memory).await, 1);
        match memory.blobs().len() {
            0 => without += 1,
            _ => with += 1,
        }
    }
    assert!(with > 5 && without > 5, "{with} with, {without} without");
}

#[tokio::test(start_paused = true)]
async fn only_eventual_reads_are_stale() {
    let memory = Memory::new();
    let faulty = Faulty::new(Arc::new(memory.clone()), only(|p| p.stale_read = 0.5), env(6));
    let other = faulty.another(only(|p| p.stale_read = 0.5), env(7));
    let mut stale = 0;
    for n in 1..=200 {
        faulty.commit(Commit::one(add())).await.expect("no fault");
        assert_eq!(count(&faulty).await, n);
        let read = other.get(&key(), Consistency::Eventual).await.expect("a read");
        let read = read.and_then(|i| i.int("n")).expect("it was never seen to be absent");
        assert!((1..=n).contains(&read), "{read} never was");
        stale += u64::from(read != n);
    }
    assert!((30..170).contains(&stale), "{stale} of 200");
    assert!(other.faults()["stale_read"] >= stale);
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_the_process_where_it_says() {
    for (crash, writes, blobs) in
        [(Crash::Before, 2, 2), (Crash::AfterBlobs, 2, 3), (Crash::After, 3, 3)]
    {
        let memory = Memory::new();
        let faulty = Faulty::new(Arc::new(memory.clone()), Plan::none(), env(8));
        faulty.crash_at(3, crash);
        let env = env(9);
        let life = async {
            for _ in 0..5 {
                faulty.commit(with_blob(&env)).await.expect("no fault");
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), life).await.is_err(), "it went on");
        let head = key();
        let read = faulty.get(&head, Consistency::Strong);
        assert!(
            tokio::time::timeout(Duration::from_secs(60), read).await.is_err(),
            "the dead answered"
        );
        assert_eq!((count(&memory).await, memory.blobs().len()), (writes, blobs), "{crash:?}");
        let heir = faulty.another(Plan::none(), env.clone());
        assert_eq!(count(&heir).await, writes);
    }
}

/// The same seed is the same history, down to the last byte; another seed is another.
#[tokio::test(start_paused = true)]
async fn a_seed_is_a_history() {
    async fn history(seed: u64) -> (Vec<String>, Memory, u64) {
        let memory = Memory::new();
        memory.start_log();
        let faulty = Faulty::new(Arc::new(memory.clone()), Plan::stormy(), env(seed));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4u64 {
            let (faulty, env) = (faulty.clone(), env(seed + 1000 + task));
            tasks.spawn(async move {
                let mut answers = Vec::new();
                for n in 0..40 {
                    answers.push(format!("{task} {n} {:?}", faulty.commit(with_blob(&env)).await));
                    let read = faulty.get(&key(), Consistency::Eventual).await;
                    answers.push(format!("{task} {n} {read:?}"));
                }
                answers
            });
        }
        let mut answers: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        answers.sort();
        answers.push(format!("{:?}", memory.take_log()));
        let kinds = faulty.faults().len() as u64;
        (answers, memory, kinds)
    }
    let (first, memory, kinds) = history(1).await;
    let (second, again, _) = history(1).await;
    assert_eq!(first, second);
    assert_eq!((memory.items(), memory.blobs()), (again.items(), again.blobs()));
    assert_ne!(first, history(2).await.0);
    assert!(kinds >= 7, "only {kinds} kinds of fault struck");
}
