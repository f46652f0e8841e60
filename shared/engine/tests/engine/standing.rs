//! How far groups have come, and dead letters as a store of their own.

use Verdict::*;
use tidewheel_engine::*;

use crate::fixture::*;

#[tokio::test(start_paused = true)]
async fn backlogs_add_up_as_the_slowest_group_sees_them() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2", "3", "4"]).await;
    f.push("q", &["0"]).await;
    let named = |group: &str, batch| Pop {
        target: PopTarget::Partition { stream: "s".into(), partition: "p".into() },
        ..pop_of("s", group, batch)
    };
    let p = f.partition_id("s", "p").await;
    let alone = f.engine.standing(&p).await.unwrap().unwrap();
    assert_eq!(alone.backlog(), Backlog { total: 5, pending: 5, ..Backlog::default() });

    let fast = f.engine.pop(named("fast", 10)).await.unwrap();
    f.ack_all("fast", &fast).await;
    let slow = f.engine.pop(named("slow", 3)).await.unwrap();
    f.ack("slow", &slow, &[Completed]).await;
    f.pass(7.0).await;
    let standing = f.restart().standing(&p).await.unwrap().unwrap();
    let backlog = Backlog { total: 5, pending: 2, processing: 2, completed: 1 };
    assert_eq!(standing.backlog(), backlog);
    assert_eq!(standing.slowest().unwrap().group.name, "slow");
    let position = standing.slowest().unwrap().position.as_ref().unwrap();
    assert_eq!((position.committed, position.consumed, position.processing()), (1, 1, 2));
    assert_eq!(position.consumed_us, Some(START_US));
    assert_eq!(standing.next_owed(Some(position)), Some(1));
    assert_eq!(f.engine.time_of(&standing, 1).await.unwrap(), Some(START_US));

    // A group lags where it is awake: the partition that it has finished is not listed.
    let q = Pop {
        target: PopTarget::Partition { stream: "s".into(), partition: "q".into() },
        ..pop_of("s", "slow", 10)
    };
    let batch = f.engine.pop(q).await.unwrap();
    f.ack_all("slow", &batch).await;
    let lagging = f.engine.lagging("s", "slow", 100).await.unwrap();
    let names: Vec<_> = lagging.iter().map(|s| s.partition.name.as_str()).collect();
    assert_eq!(names, ["p"]);
    assert_eq!(f.engine.lagging("s", "nobody", 100).await.unwrap(), []);
    let groups = f.engine.groups("s").await.unwrap();
    let names: Vec<_> = groups.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["fast", "slow"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_put_back_stays_registered_and_reads_again() {
    let f = Fixture::new();
    f.push("p", &["before"]).await;
    f.pass(1.0).await;
    let pop = || Pop { mode: SubscriptionMode::New, ..pop_of("s", "g", 10) };
    assert!(f.engine.pop(pop()).await.unwrap().messages.is_empty());
    f.pass(1.0).await;
    f.push("p", &["0", "1"]).await;
    let other = f.restart();
    let batch = other.pop(pop()).await.unwrap();
    assert_eq!(payloads(&batch), ["0", "1"]);
    assert_eq!(f.engine.restart_group("g", Some("s")).await.unwrap(), 1);
    let late =
        other.ack(Some("g"), vec![ack_of(&batch.messages[0], Completed, &batch)]).await.unwrap();
    assert_eq!(late[0].error.as_deref(), Some("invalid or expired lease"));
    // From where it began, whatever mode a pop names now.
    let again = f.pop("g", 10).await;
    assert_eq!(payloads(&again), ["0", "1"]);
    f.ack_all("g", &again).await;
    assert!(other.pop(pop()).await.unwrap().messages.is_empty());
    assert_eq!(f.engine.restart_group("nobody", None).await.unwrap(), 0);
    assert_eq!(f.engine.restart_group("g", None).await.unwrap(), 1);
    assert_eq!(payloads(&other.pop(pop()).await.unwrap()), ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn a_moved_subscription_holds_for_partitions_not_yet_come_to() {
    let f = Fixture::new();
    let other = f.restart();
    let pop = |partition: &str| Pop {
        target: PopTarget::Partition { stream: "s".into(), partition: partition.into() },
        ..pop_of("s", "g", 10)
    };
    // Both processes know the group; it begins at the oldest.
    f.push("touched", &["0", "1"]).await;
    let batch = f.engine.pop(Pop { batch: 1, ..pop("touched") }).await.unwrap();
    f.ack_all("g", &batch).await;
    f.push("untouched", &["old"]).await;
    f.pass(10.0).await;
    assert_eq!(other.set_subscription("g", START_US + 5_000_000).await.unwrap(), 1);
    f.push("untouched", &["new"]).await;
    assert_eq!(payloads(&f.engine.pop(pop("untouched")).await.unwrap()), ["new"]);
    assert_eq!(
        payloads(&f.engine.pop(pop("touched")).await.unwrap()),
        ["1"],
        "where it has come to it stays"
    );
    assert_eq!(f.engine.set_subscription("nobody", 0).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_counted_found_and_deleted() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"retryLimit": 0})).await;
    let large = "x".repeat(50_000);
    let many: Vec<String> = (0..100).map(|n| format!("{n}")).chain([large]).collect();
    f.push("p", &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    f.push("q", &["0"]).await;
    let (p, q) = (f.partition_id("s", "p").await, f.partition_id("s", "q").await);
    for group in ["g", "h"] {
        let pop = Pop { partitions: 2, ..pop_of("s", group, 200) };
        let batch = f.engine.pop(pop).await.unwrap();
        let acked = f.ack(group, &batch, &vec![Failed; batch.messages.len()]).await;
        assert!(acked.iter().all(|a| a.dead_lettered));
    }
    let counts = async |group| f.restart().dead_letter_counts("s", group).await.unwrap();
    assert_eq!(counts(None).await, [(p, 202), (q, 2)].into());
    assert_eq!(counts(Some("g")).await, [(p, 101), (q, 1)].into());

    let first = f.engine.dead_letters("s", Some("g"), 0, 1000).await.unwrap();
    let letter = first.iter().find(|l| l.record.payload.len() == 50_000).unwrap();
    let tx = letter.record.transaction_id.clone();
    assert_eq!(f.engine.dead_letter(&letter.id).await.unwrap().as_ref(), Some(letter));
    assert_eq!(f.engine.dead_letter_of(&p, &tx, Some("g")).await.unwrap().as_ref(), Some(letter));
    assert_eq!(f.engine.dead_letter_of(&q, &tx, None).await.unwrap(), None);
    assert!(f.engine.delete_dead_letter(&letter.id).await.unwrap());
    assert!(!f.restart().delete_dead_letter(&letter.id).await.unwrap());
    for id in ["", "x", "a.b.c.d", &format!("0.{q}.0.0")] {
        assert!(!f.engine.delete_dead_letter(id).await.unwrap(), "{id}");
    }
    assert_eq!(counts(Some("g")).await[&p], 100);

    assert_eq!(f.engine.delete_dead_letters("s", Some("g")).await.unwrap(), 101);
    assert_eq!(counts(None).await, [(p, 101), (q, 1)].into());
    assert_eq!(f.engine.dead_letter_of(&p, &tx, None).await.unwrap().unwrap().group, "h");
    assert_eq!(f.engine.delete_dead_letters("s", None).await.unwrap(), 102);
    assert_eq!(counts(None).await, [].into());
    assert_eq!(f.engine.dead_letters("s", None, 0, 10).await.unwrap(), []);
    assert_eq!(f.engine.delete_dead_letters("nowhere", None).await.unwrap(), 0);
    f.engine.delete_stream("s").await.unwrap();
    assert!(f.store.items().is_empty(), "{:?}", f.store.items().keys());
}

#[tokio::test(start_paused = true)]
async fn a_transaction_counts_its_dead_letters() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    let batch = f.pop("g", 3).await;
    let p = batch.messages[0].partition.id;
    let ack = |at: usize, lease: bool| {
        let mut ack = ack_of(&batch.messages[at], DeadLetter, &batch);
        ack.lease_id = ack.lease_id.filter(|_| lease);
        TransactionOp::Ack { group: Some("g".into()), ack }
    };
    // Two acknowledgements of one cursor, fenced and not: one count.
    f.engine.transact(vec![ack(0, true), ack(1, false)], Vec::new()).await.unwrap().unwrap();
    assert_eq!(f.engine.dead_letter_counts("s", Some("g")).await.unwrap(), [(p, 2)].into());
    assert_eq!(payloads(&f.pop("g", 3).await), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_found_by_its_transaction_id() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"dedupWindowSeconds": 0})).await;
    f.engine.push(vec![with_id(item("s", "p", "first"), "t"), item("s", "p", "anonymous")]).await;
    for n in 0..60 {
        f.push("p", &[&n.to_string()]).await;
    }
    f.engine.push(vec![with_id(item("s", "p", "second"), "t")]).await;
    let p = f.partition_id("s", "p").await;
    let records = f.engine.read(&p, 0, 2, usize::MAX).await.unwrap().records;
    let find = async |id: &str| f.restart().find_record(&p, id).await.unwrap();
    assert_eq!(&find("t").await.unwrap().payload[..], b"second", "the newest of an id counts");
    assert_eq!(find(&records[1].transaction_id).await.as_ref(), Some(&records[1]));
    assert_eq!(find("no such id").await, None);
    assert_eq!(find(&records[0].id.to_string()).await, None, "that is not its transaction id");
}
