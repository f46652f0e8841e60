//! Popping and acknowledging: the scenarios of the Queen contract, and what they cost.

use std::time::Duration;

use Verdict::*;
use tidewheel_engine::*;

use crate::fixture::*;

#[tokio::test(start_paused = true)]
async fn a_batch_is_leased_in_order_and_to_one_only() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2", "3", "4"]).await;
    let first = f.pop("g", 3).await;
    assert_eq!(payloads(&first), ["0", "1", "2"]);
    assert!(f.pop("g", 3).await.messages.is_empty(), "the partition is leased");
    assert_eq!(payloads(&f.pop("h", 10).await).len(), 5, "another group is independent");
    f.ack_all("g", &first).await;
    assert_eq!(payloads(&f.pop("g", 10).await), ["3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_lease_comes_again_and_counts_the_delivery_s32() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 10})).await;
    f.push("p", &["0", "1", "2"]).await;
    let first = f.pop("g", 3).await;
    let acked = f.ack("g", &first, &[Completed]).await;
    assert!(!acked[0].lease_released, "the rest is still leased");
    f.pass(9.0).await;
    assert!(f.pop("g", 3).await.messages.is_empty());
    f.pass(2.0).await;
    let again = f.pop("g", 3).await;
    assert_eq!(payloads(&again), ["1", "2"]);
    assert!(again.messages.iter().all(|m| m.attempt == 2));
    let late = f.ack("g", &first, &[Completed, Completed]).await;
    assert!(
        late.iter().all(|a| a.error.as_deref() == Some("invalid or expired lease")),
        "{late:?}"
    );
    f.ack_all("g", &again).await;
    f.push("p", &["3"]).await;
    assert_eq!(f.pop("g", 3).await.messages[0].attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn the_lowest_failure_holds_the_cursor_s28() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2", "3"]).await;
    let batch = f.pop("g", 4).await;
    let acked = f.ack("g", &batch, &[Completed, Failed, Completed, Completed]).await;
    assert!(acked.iter().all(|a| a.error.is_none() && a.lease_released));
    let again = f.pop("g", 4).await;
    assert_eq!(payloads(&again), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn late_acknowledgements_below_the_cursor_s29() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    let batch = f.pop("g", 3).await;
    f.ack("g", &batch, &[Completed, Completed]).await;
    let late = f.ack("g", &batch, &[Failed, Completed]).await;
    assert!(late[0].error.as_deref().unwrap().contains("already committed"), "{late:?}");
    assert!(late[1].noop && late[1].error.is_none(), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_delivered_cannot_be_acknowledged_s30() {
    let f = Fixture::new();
    f.engine.push((0..4).map(|n| with_id(item("s", "p", "x"), &format!("id {n}"))).collect()).await;
    let batch = f.pop("g", 2).await;
    let mut ack = ack_of(&batch.messages[0], Completed, &batch);
    for id in ["id 2", "no such id"] {
        ack.transaction_id = id.into();
        let acked = f.engine.ack(Some("g"), vec![ack.clone()]).await.unwrap();
        assert!(acked[0].error.as_deref().unwrap().contains("unresolvable"), "{acked:?}");
    }
    f.ack_all("g", &batch).await;
    assert_eq!(f.pop("g", 10).await.messages.len(), 2);
    let nobody = f.engine.ack(Some("nobody"), vec![ack]).await.unwrap();
    assert!(nobody[0].error.as_deref().unwrap().contains("consumer not found"), "{nobody:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unfenced_acknowledgement_moves_past_a_live_lease() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let batch = f.pop("g", 2).await;
    let mut ack = ack_of(&batch.messages[1], Completed, &batch);
    ack.lease_id = None;
    assert_eq!(f.engine.ack(Some("g"), vec![ack]).await.unwrap()[0].error, None);
    assert!(f.pop("g", 2).await.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn retries_and_lapsed_leases_charge_nothing_and_failures_do_s31() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 5, "retryLimit": 2})).await;
    f.push("p", &["poison", "next"]).await;
    for _ in 0..10 {
        let batch = f.pop("g", 1).await;
        assert!(!f.ack("g", &batch, &[Retry]).await[0].dead_lettered);
        assert_eq!(payloads(&f.pop("g", 1).await), ["poison"]);
        f.pass(6.0).await;
    }
    for charged in 0..3 {
        let batch = f.pop("g", 1).await;
        assert_eq!(payloads(&batch), ["poison"]);
        assert_eq!(f.ack("g", &batch, &[Failed]).await[0].dead_lettered, charged == 2);
    }
    let letters = f.engine.dead_letters("s", Some("g"), 0, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(&letters[0].record.payload[..], b"poison");
    assert_eq!((letters[0].error.as_str(), letters[0].failures), ("boom", 2));
    assert_eq!(payloads(&f.pop("g", 1).await), ["next"], "poison blocks nobody");
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_over_budget_is_settled_as_a_batch() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"retryLimit": 0})).await;
    let many: Vec<String> = (0..120).map(|n| n.to_string()).collect();
    f.push("p", &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let batch = f.pop("g", 120).await;
    let acked = f.ack("g", &batch, &[Failed; 120]).await;
    assert!(acked.iter().all(|a| a.dead_lettered), "more than one commit holds");
    assert_eq!(f.engine.dead_letters("s", None, 0, 1000).await.unwrap().len(), 120);
    assert_eq!(f.engine.dead_letters("s", None, 100, 1000).await.unwrap().len(), 20);
    assert!(f.pop("g", 10).await.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn poison_is_dropped_only_when_both_switches_are_off_s31() {
    for (a, b, kept) in [(false, false, 0), (true, false, 1), (false, true, 1)] {
        let f = Fixture::new();
        let options =
            serde_json::json!({"retryLimit": 0, "deadLetterQueue": a, "dlqAfterMaxRetries": b});
        f.configure("s", options).await;
        f.push("p", &["poison"]).await;
        let batch = f.pop("g", 1).await;
        assert_eq!(f.ack("g", &batch, &[Failed]).await[0].dead_lettered, kept == 1);
        assert_eq!(f.engine.dead_letters("s", None, 0, 10).await.unwrap().len(), kept);
        assert!(f.pop("g", 1).await.messages.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_dead_letter_keeps_its_own_payload() {
    let f = Fixture::new();
    let large = "x".repeat(100_000);
    f.push("p", &[&large]).await;
    let batch = f.pop("g", 1).await;
    assert!(f.ack("g", &batch, &[DeadLetter]).await[0].dead_lettered);
    let letters = f.restart().dead_letters("s", None, 0, 10).await.unwrap();
    assert_eq!(letters[0].record.payload.len(), 100_000);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_it_lives_and_never_after_s21() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 5})).await;
    for p in ["a", "b", "c"] {
        f.push(p, &["0"]).await;
    }
    let batch = f.engine.pop(Pop { partitions: 3, ..pop_of("s", "g", 10) }).await.unwrap();
    assert_eq!(batch.partitions, 3, "one lease over three partitions");
    f.pass(4.0).await;
    let extended = f.restart().extend(&batch.lease_id, 10).await.unwrap();
    assert_eq!(extended.renewed, 3);
    f.pass(9.0).await;
    let verdicts = [Failed, Completed, Completed];
    assert!(f.ack("g", &batch, &verdicts).await.iter().all(|a| a.error.is_none()));
    assert_eq!(f.pop("g", 10).await.messages.len(), 1, "only the failed one comes again");
    f.pass(6.0).await;
    assert_eq!(f.engine.extend(&batch.lease_id, 10).await.unwrap(), Extended::default());
    assert_eq!(f.engine.extend("nonsense", 10).await.unwrap(), Extended::default());
}

#[tokio::test(start_paused = true)]
async fn the_batch_is_a_budget_over_the_call_s37() {
    let f = Fixture::new();
    for p in ["a", "b", "c", "d"] {
        f.push(p, &["0", "1", "2", "3"]).await;
    }
    let batch = f.engine.pop(Pop { partitions: 3, ..pop_of("s", "g", 10) }).await.unwrap();
    assert_eq!((batch.messages.len(), batch.partitions), (10, 3));
    for info in
        batch.messages.iter().map(|m| &m.partition.id).collect::<std::collections::BTreeSet<_>>()
    {
        let offsets =
            batch.messages.iter().filter(|m| m.partition.id == *info).map(|m| m.record.offset);
        assert!(offsets.is_sorted());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_group_starts_at_its_registration_and_new_partitions_from_their_start_s22() {
    let f = Fixture::new();
    f.push("old", &["before"]).await;
    let new = || Pop { mode: SubscriptionMode::New, partitions: 10, ..pop_of("s", "g", 10) };
    assert!(f.engine.pop(new()).await.unwrap().messages.is_empty(), "the registering pop is empty");
    f.push("old", &["after"]).await;
    f.push("young", &["first"]).await;
    let batch = f.engine.pop(new()).await.unwrap();
    let mut got = payloads(&batch);
    got.sort();
    assert_eq!(got, ["after", "first"]);
}

#[tokio::test(start_paused = true)]
async fn queue_mode_starts_at_the_oldest_whatever_is_asked_s23() {
    let f = Fixture::new();
    f.push("p", &["backlog"]).await;
    let pop = Pop { group: None, mode: SubscriptionMode::New, ..pop_of("s", "", 10) };
    assert_eq!(payloads(&f.engine.pop(pop).await.unwrap()), ["backlog"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_may_start_at_a_time() {
    let f = Fixture::new();
    for n in 0..60 {
        f.push("p", &[&n.to_string()]).await;
        f.pass(1.0).await;
    }
    let mode = SubscriptionMode::From(START_US + 30_000_000);
    let batch = f.engine.pop(Pop { mode, ..pop_of("s", "g", 100) }).await.unwrap();
    let first: u64 = payloads(&batch)[0].parse().unwrap();
    assert!((29..=31).contains(&first), "{first}");
    assert_eq!(batch.messages.len() as u64, 60 - first);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pop_is_woken_by_a_push_and_ends_in_time() {
    let f = Fixture::new();
    let wait = |seconds| Pop { wait: Some(Duration::from_secs(seconds)), ..pop_of("s", "g", 10) };
    let started = f.env.now_us();
    assert!(f.engine.pop(wait(3)).await.unwrap().messages.is_empty());
    let took = f.env.now_us() - started;
    assert!((3_000_000..3_100_000).contains(&took), "{took}");
    let engine = f.engine.clone();
    let waiting = tokio::spawn(async move { engine.pop(wait(30)).await.unwrap() });
    f.pass(1.0).await;
    let pushed_us = f.env.now_us();
    f.push("p", &["now"]).await;
    assert_eq!(payloads(&waiting.await.unwrap()), ["now"]);
    assert!(f.env.now_us() - pushed_us < 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_backlog_behind_a_dead_worker_is_not_stranded_s24() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 20})).await;
    f.push("p", &["0", "1"]).await;
    let _dead = f.pop("g", 2).await;
    for _ in 0..30 {
        assert!(f.restart().pop(pop_of("s", "g", 2)).await.unwrap().messages.is_empty());
    }
    let wait = Pop { wait: Some(Duration::from_secs(30)), ..pop_of("s", "g", 2) };
    let started = f.env.now_us();
    assert_eq!(payloads(&f.engine.pop(wait).await.unwrap()), ["0", "1"]);
    assert!(f.env.now_us() - started < 21_000_000);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_stream_hides_what_is_young() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"delayedProcessing": 10})).await;
    f.push("p", &["0"]).await;
    f.pass(6.0).await;
    f.push("p", &["1"]).await;
    assert!(f.pop("g", 10).await.messages.is_empty());
    f.pass(5.0).await;
    let batch = f.pop("g", 10).await;
    assert_eq!(payloads(&batch), ["0"]);
    f.ack_all("g", &batch).await;
    let wait = Pop { wait: Some(Duration::from_secs(30)), ..pop_of("s", "g", 2) };
    let started = f.env.now_us();
    assert_eq!(payloads(&f.engine.pop(wait).await.unwrap()), ["1"]);
    assert!(f.env.now_us() - started <= 5_500_000, "the pop wakes when the record is due");
}

#[tokio::test(start_paused = true)]
async fn a_window_buffer_lets_batches_grow() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"windowBuffer": 10})).await;
    f.push("p", &["0"]).await;
    f.pass(5.0).await;
    f.push("p", &["1"]).await;
    assert!(f.pop("g", 10).await.messages.is_empty());
    f.pass(5.5).await;
    assert_eq!(payloads(&f.pop("g", 10).await), ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn delivery_may_be_the_commit() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    let auto = Pop { auto_ack: true, ..pop_of("s", "g", 2) };
    let batch = f.engine.pop(auto).await.unwrap();
    assert_eq!((batch.lease_id.as_str(), batch.messages.len()), ("", 2));
    assert_eq!(payloads(&f.pop("g", 10).await), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn labels_find_streams() {
    let f = Fixture::new();
    let labelled = Configure {
        namespace: Some("billing".into()),
        task: Some("mail".into()),
        ..Configure::default()
    };
    f.engine.configure("a", labelled).await.unwrap();
    f.engine
        .push(vec![item("a", "p", "1"), item("billing.x", "p", "2"), item("c", "p", "3")])
        .await;
    let pop = |namespace: Option<&str>, task: Option<&str>, group: &str| Pop {
        target: PopTarget::Labels {
            namespace: namespace.map(Into::into),
            task: task.map(Into::into),
        },
        partitions: 10,
        ..pop_of("", group, 10)
    };
    let both = f.engine.pop(pop(Some("billing"), None, "g")).await.unwrap();
    let mut got = payloads(&both);
    got.sort();
    assert_eq!(got, ["1", "2"], "a dotted name seeds its labels");
    assert_eq!(
        payloads(&f.engine.pop(pop(Some("billing"), Some("mail"), "h")).await.unwrap()),
        ["1"]
    );
}

#[tokio::test(start_paused = true)]
async fn seeking_ends_leases_and_wakes_s20_s25() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    let batch = f.pop("g", 10).await;
    assert_eq!(f.engine.seek("g", "s", None, None).await.unwrap(), 1);
    let refused = f.ack("g", &batch, &[Completed]).await;
    assert_eq!(refused[0].error.as_deref(), Some("invalid or expired lease"));
    assert!(f.pop("g", 10).await.messages.is_empty(), "to the end");
    let engine = f.engine.clone();
    let wait = Pop { wait: Some(Duration::from_secs(30)), ..pop_of("s", "g", 10) };
    let waiting = tokio::spawn(async move { engine.pop(wait).await.unwrap() });
    f.pass(1.0).await;
    f.engine.seek("g", "s", Some("p"), Some(0)).await.unwrap();
    assert_eq!(payloads(&waiting.await.unwrap()), ["0", "1", "2"]);
    let unknown = f.engine.seek("g", "nowhere", None, None).await;
    assert_eq!(unknown, Err(Error::StreamNotFound("nowhere".into())));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_group_starts_anew_s25() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let batch = f.pop("g", 10).await;
    let other = f.restart();
    assert_eq!(other.delete_group("g", Some("s")).await.unwrap(), (1, true));
    let refused =
        f.engine.ack(Some("g"), vec![ack_of(&batch.messages[0], Completed, &batch)]).await.unwrap();
    assert!(refused[0].error.is_some(), "{refused:?}");
    f.pass(3.0).await;
    assert_eq!(
        payloads(&f.pop("g", 10).await),
        ["0", "1"],
        "by a process that remembered the old group"
    );
    assert_eq!(f.engine.delete_group("nobody", None).await.unwrap(), (0, false));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_stream_is_gone_and_comes_back_empty() {
    let f = Fixture::new();
    let stale = f.restart();
    stale.push(vec![item("s", "p", "old")]).await;
    f.pop("g", 1).await;
    assert!(f.engine.delete_stream("s").await.unwrap());
    assert!(!f.engine.delete_stream("s").await.unwrap());
    assert!(f.store.blobs().is_empty(), "{:?}", f.store.blobs());
    assert!(f.store.items().is_empty(), "{:?}", f.store.items().keys());
    let pushed = stale.push(vec![item("s", "p", "new")]).await;
    assert_eq!(offset(&pushed[0]), 0, "a process that remembers the old stream makes a new one");
    assert_eq!(f.payloads("s", "p").await, ["new"]);
    assert_eq!(payloads(&f.pop("g", 10).await), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn configure_merges_restores_and_replaces_s41() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 7})).await;
    f.configure("s", serde_json::json!({"retryLimit": 9})).await;
    let options = f.engine.stream("s").await.unwrap().unwrap().options;
    assert_eq!((options.lease_time, options.retry_limit), (7, 9));
    f.configure("s", serde_json::json!({"leaseTime": null})).await;
    let options = f.engine.stream("s").await.unwrap().unwrap().options;
    assert_eq!((options.lease_time, options.retry_limit), (300, 9));
    let replace = Configure { replace: true, ..Configure::default() };
    let options = f.engine.configure("s", replace).await.unwrap().options;
    assert_eq!(options, StreamOptions::configured());
    let serde_json::Value::Object(wrong) = serde_json::json!({"leaseTime": "soon"}) else {
        panic!()
    };
    let refused =
        f.engine.configure("s", Configure { options: wrong, ..Configure::default() }).await;
    assert!(refused.unwrap_err().to_string().contains("leaseTime"));
}
