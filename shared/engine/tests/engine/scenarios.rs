//! Scenarios of the Queen contract that are told from a stream processor's side: what the server must hold for each.

use std::time::Duration;

use Verdict::*;
use tidewheel_engine::*;

use crate::{
    cycles::{GROUP, delete, keys, query, upsert, work},
    fixture::*,
};

/// A gate lets a prefix through: it commits that and keeps the lease, and what it denied comes again in order.
#[tokio::test(start_paused = true)]
async fn a_gates_tail_waits_for_the_lease_and_is_overtaken_by_nothing_s3() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 3})).await;
    let all: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    f.push("p", &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut passed = Vec::new();
    for round in 0.. {
        let popped = f.pop(GROUP, 50).await;
        if popped.messages.is_empty() {
            break;
        }
        let w = crate::cycles::Work::of(
            query(&f).await,
            popped.messages[0].partition.id,
            &popped.lease_id,
        );
        let allowed: Vec<String> = payloads(&popped).into_iter().take(7).collect();
        let denied = popped.messages.len() > allowed.len();
        let sink: Vec<&str> = allowed.iter().map(String::as_str).collect();
        let mut cycle = w.cycle(vec![upsert("tokens", &round.to_string())], &sink);
        cycle.ack.as_mut().unwrap().count = allowed.len() as u64;
        cycle.release_lease = !denied;
        f.engine.cycle(cycle).await.unwrap();
        passed.extend(allowed);
        // What comes meanwhile queues up behind the tail.
        if round == 0 {
            f.push("p", &["50", "51"]).await;
        }
        assert!(
            !denied || f.pop(GROUP, 50).await.messages.is_empty(),
            "the tail is not to be seen"
        );
        f.pass(3.1).await;
    }
    assert!(passed.iter().eq((0..52).map(|n| n.to_string()).collect::<Vec<_>>().iter()));
    assert_eq!(f.payloads("out", "p").await, passed);
}

/// Retention takes records from under a lease: the rest is acknowledged by its own count.
#[tokio::test(start_paused = true)]
async fn what_retention_has_taken_is_not_counted_s7() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"retentionEnabled": true, "retentionSeconds": 20})).await;
    f.push("p", &["0", "1", "2"]).await;
    f.pass(15.0).await;
    f.push("p", &["3", "4", "5"]).await;
    let w = work(&f, 6).await;
    f.pass(10.0).await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 3);
    assert_eq!(f.engine.cycle(w.partial(2)).await.unwrap().acked, Some((2, false)));
    f.pass(400.0).await;
    assert_eq!(
        payloads(&f.pop(GROUP, 10).await),
        ["5"],
        "3 and 4 were acknowledged, 0 to 2 are gone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_bad_operation_in_the_list_undoes_the_good_ones_s9() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    f.push("out", &["make the stream"]).await;
    let w = work(&f, 1).await;
    let before = f.store.items();
    let long = "k".repeat(limits::STATE_KEY_BYTES + 1);
    let cycle =
        w.cycle(vec![upsert("good", "1"), upsert(&long, "1"), upsert("after", "1")], &["x"]);
    assert!(matches!(f.engine.cycle(cycle).await, Err(Error::Limit { .. })));
    assert_eq!(f.store.items(), before);
    f.engine.cycle(w.cycle(vec![upsert("good", "1")], &[])).await.unwrap();
}

/// A chain with a gate that lets nothing through commits nothing: the batch comes again at the pace of its lease, whole
/// and in order.
#[tokio::test(start_paused = true)]
async fn a_batch_that_nobody_settles_comes_again_whole_s12() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 2})).await;
    f.push("p", &["0", "1", "2"]).await;
    for round in 1..=3 {
        let batch = f.pop(GROUP, 10).await;
        assert_eq!(payloads(&batch), ["0", "1", "2"]);
        assert!(batch.messages.iter().all(|m| m.attempt == round));
        f.pass(2.1).await;
    }
    // Half of what one message expands to was denied: the message is not acknowledged, and nothing of it is emitted.
    let w = work(&f, 10).await;
    let mut cycle = w.cycle(Vec::new(), &["0"]);
    (cycle.ack.as_mut().unwrap().count, cycle.release_lease) = (1, false);
    f.engine.cycle(cycle).await.unwrap();
    f.pass(2.1).await;
    assert_eq!(payloads(&f.pop(GROUP, 10).await), ["1", "2"]);
    assert_eq!(f.payloads("out", "p").await, ["0"]);
}

/// Another client registers the same chain, finds the same query and goes on with its windows, also in another process.
#[tokio::test(start_paused = true)]
async fn another_client_resumes_the_same_query_s14() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let w = work(&f, 1).await;
    f.engine.cycle(w.cycle(vec![upsert("window", "{\"acc\":1}")], &[])).await.unwrap();
    let other = f.restart();
    let again = other.register_query("q", "s", Some("out"), "h1", false).await.unwrap();
    assert!(matches!(&again, Registered::Same(q) if q.id == w.query), "{again:?}");
    assert_eq!(keys(&other, &w, StateFilter::default()).await, ["window"]);
    let batch = other.pop(pop_of("s", GROUP, 10)).await.unwrap();
    assert_eq!(payloads(&batch), ["1"]);
    // The same number written in another way is another chain.
    let float = other.register_query("q", "s", Some("out"), "h1.0", false).await.unwrap();
    assert!(matches!(float, Registered::Mismatch(_)), "{float:?}");
}

/// A cycle and a flush of one process meet on a window: whichever commits second is refused or sees the other's work.
#[tokio::test(start_paused = true)]
async fn a_cycle_and_a_flush_emit_a_window_once_s15() {
    for flush_first in [true, false] {
        let f = Fixture::new();
        f.push("p", &["0"]).await;
        let w = work(&f, 10).await;
        f.engine.cycle(w.cycle(vec![upsert("w", "1")], &[])).await.unwrap();
        f.push("p", &["1"]).await;
        let late = work(&f, 10).await;
        // Both have read the window and found it ripe.
        let cycle = late.cycle(vec![delete("w")], &["closed"]);
        let flush = w.flush(vec![delete("w")], &["closed"]);
        let (first, second) = if flush_first { (flush, cycle) } else { (cycle, flush) };
        f.engine.cycle(first).await.unwrap();
        let refused = f.engine.cycle(second).await;
        assert!(matches!(refused, Err(Error::StaleState { .. })), "{refused:?}");
        assert_eq!(f.payloads("out", "p").await, ["closed"]);
        let again = f.pop(GROUP, 10).await;
        assert_eq!(again.messages.len(), usize::from(flush_first), "given back, or done");
    }
}

/// A late event makes a window anew that was emitted and deleted: its row begins from nothing, and leaves again.
#[tokio::test(start_paused = true)]
async fn a_window_made_anew_holds_the_late_events_only_s16() {
    let f = Fixture::new();
    let round = async |payload: &str, ops: Vec<StateOp>, sink: &[&str]| {
        f.push("p", &[payload]).await;
        let w = work(&f, 10).await;
        let before = keys(&f.engine, &w, StateFilter::default()).await;
        f.engine.cycle(w.cycle(ops, sink)).await.unwrap();
        before
    };
    assert_eq!(round("a", vec![upsert("w", "1")], &[]).await, [""; 0]);
    assert_eq!(round("b", vec![delete("w")], &["1"]).await, ["w"]);
    assert_eq!(round("late", vec![upsert("w", "1")], &[]).await, [""; 0], "nothing of the old one");
    assert_eq!(round("c", vec![delete("w")], &["1 late"]).await, ["w"]);
    assert_eq!(f.payloads("out", "p").await, ["1", "1 late"]);
    assert_eq!(round("d", Vec::new(), &[]).await, [""; 0]);
}

/// Ripe is what the watermark passes, whatever the clock says: the server compares numbers and looks at no clock.
#[tokio::test(start_paused = true)]
async fn a_silent_partition_stays_open_in_event_time_s18() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    let open =
        vec![upsert("w", "{\"windowEnd\":60000}"), upsert("__wm__", "{\"eventTimeMs\":59000}")];
    f.engine.cycle(w.cycle(open, &[])).await.unwrap();
    f.pass(3600.0).await;
    let ripe = |at: f64| StateFilter { ripe_at_or_before: Some(at), ..StateFilter::default() };
    assert_eq!(keys(&f.engine, &w, ripe(59_000.0)).await, [""; 0]);
    assert_eq!(keys(&f.engine, &w, ripe(60_000.0)).await, ["w"]);
}

/// Only the newest message of a partition is delivered, and stands for all that wait.
#[tokio::test(start_paused = true)]
async fn a_conflating_group_gets_the_newest_only_s40() {
    let f = Fixture::new();
    f.configure(
        "s",
        serde_json::json!({"leaseTime": 10, "retryLimit": 1, "dedupWindowSeconds": 0}),
    )
    .await;
    let pop = |batch| Pop { conflation: Some(true), partitions: 10, ..pop_of("s", "g", batch) };
    let empty = f.engine.pop(pop(10)).await.unwrap();
    assert!(empty.messages.is_empty() && empty.conflation && !empty.conflation_conflict);
    f.push("p", &["0", "1", "2"]).await;
    f.push("q", &["a"]).await;
    let batch = f.engine.pop(pop(10)).await.unwrap();
    assert!(batch.conflation);
    let mut got = payloads(&batch);
    got.sort();
    assert_eq!(got, ["2", "a"], "one of each partition");
    // What comes while the handler runs is delivered afterwards.
    f.push("p", &["3", "4"]).await;
    let acked = f.ack("g", &batch, &[Completed, Completed]).await;
    let of = |payload: &str| {
        let at = payloads(&batch).iter().position(|p| p == payload).unwrap();
        (acked[at].conflated, acked[at].lease_released, acked[at].error.clone())
    };
    assert_eq!((of("2"), of("a")), ((Some(2), true, None), (Some(0), true, None)));
    let batch = f.engine.pop(pop(10)).await.unwrap();
    assert_eq!(payloads(&batch), ["4"]);

    // A nack gives the whole span back; by then something newer stands for it.
    assert_eq!(f.ack("g", &batch, &[Failed]).await[0].conflated, None);
    f.push("p", &["5"]).await;
    let batch = f.engine.pop(pop(10)).await.unwrap();
    assert_eq!((payloads(&batch), batch.messages[0].attempt), (vec!["5".to_owned()], 1));
    assert!(f.ack("g", &batch, &[Failed]).await[0].dead_lettered, "the budget is spent");
    assert!(f.engine.pop(pop(10)).await.unwrap().messages.is_empty());
    let letters = f.engine.dead_letters("s", Some("g"), 0, 10).await.unwrap();
    assert_eq!((letters.len(), &letters[0].record.payload[..]), (1, &b"5"[..]));

    // An id that is there twice within the span means the one that was delivered.
    let twice = |payload| with_id(item("s", "p", payload), "same");
    f.engine.push(vec![twice("6")]).await;
    f.engine.push(vec![twice("7"), item("s", "p", "8")]).await;
    f.engine.push(vec![twice("9")]).await;
    let batch = f.engine.pop(pop(10)).await.unwrap();
    assert_eq!(payloads(&batch), ["9"]);
    assert_eq!(f.ack("g", &batch, &[Completed]).await[0].conflated, Some(3));
    assert!(f.engine.pop(pop(10)).await.unwrap().messages.is_empty());

    // A lapsed lease, and another process.
    f.push("p", &["10", "11"]).await;
    assert_eq!(payloads(&f.engine.pop(pop(10)).await.unwrap()), ["11"]);
    f.pass(11.0).await;
    let again = f.restart().pop(pop(10)).await.unwrap();
    assert_eq!((payloads(&again), again.messages[0].attempt), (vec!["11".to_owned()], 2));
}

/// What a group said when it joined holds; who asks for something else is told.
#[tokio::test(start_paused = true)]
async fn the_stored_policy_of_a_group_wins_s40() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let pop = |group: &str, conflation| Pop { conflation, ..pop_of("s", group, 10) };
    let plain = f.engine.pop(pop("plain", None)).await.unwrap();
    assert_eq!(
        (plain.messages.len(), plain.conflation, plain.conflation_conflict),
        (2, false, false)
    );
    f.ack_all("plain", &plain).await;
    f.push("p", &["2", "3"]).await;
    let asked = f.restart().pop(pop("plain", Some(true))).await.unwrap();
    assert_eq!(
        (asked.messages.len(), asked.conflation, asked.conflation_conflict),
        (2, false, true)
    );

    let newest = f.engine.pop(pop("newest", Some(true))).await.unwrap();
    assert_eq!(payloads(&newest), ["3"]);
    f.ack_all("newest", &newest).await;
    f.push("p", &["4", "5"]).await;
    for (asks, conflict) in [(None, false), (Some(false), true)] {
        let popped = f.restart().pop(pop("newest", asks)).await.unwrap();
        assert_eq!((popped.conflation, popped.conflation_conflict), (true, conflict));
        if !popped.messages.is_empty() {
            assert_eq!(payloads(&popped), ["5"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_replayed_once_s42() {
    let f = Fixture::new();
    f.engine.push(vec![with_id(item("s", "p", "poison"), "m"), item("s", "p", "next")]).await;
    for group in ["g", "h"] {
        let batch = f.pop(group, 1).await;
        assert!(f.ack(group, &batch, &[DeadLetter]).await[0].dead_lettered);
    }
    let p = f.partition_id("s", "p").await;
    let letter = f.engine.dead_letter_of(&p, "m", Some("g")).await.unwrap().unwrap();
    let other = f.restart();
    let (a, b) =
        tokio::join!(f.engine.replay_dead_letter(&letter.id), other.replay_dead_letter(&letter.id));
    let mut outcomes = [a.unwrap(), b.unwrap()];
    outcomes.sort_by_key(|o| *o == Replayed::Missing);
    let [Replayed::Pushed { transaction_id, offset, .. }, Replayed::Missing] = &outcomes else {
        panic!("{outcomes:?}")
    };
    assert_eq!((transaction_id.as_str(), *offset), (format!("dlq:{}", letter.id).as_str(), 2));
    assert_eq!(other.replay_dead_letter(&letter.id).await.unwrap(), Replayed::Missing);
    assert_eq!(f.payloads("s", "p").await, ["poison", "next", "poison"]);
    // Only the addressed group's record has gone.
    let left = f.engine.dead_letters("s", None, 0, 10).await.unwrap();
    assert_eq!((left.len(), left[0].group.as_str()), (1, "h"));
    assert_eq!(f.engine.dead_letter_of(&p, "m", Some("g")).await.unwrap(), None);
    assert_eq!(f.engine.dead_letter_counts("s", None).await.unwrap(), [(p, 1)].into());

    // A record under the same id that is there already: the dead letter is not taken for moved.
    let id = format!("dlq:{}", left[0].id);
    f.engine.push(vec![with_id(item("s", "p", "squatter"), &id)]).await;
    let squatted = f.engine.replay_dead_letter(&left[0].id).await.unwrap();
    assert_eq!(squatted, Replayed::Duplicate { transaction_id: id });
    assert_eq!(f.engine.dead_letters("s", None, 0, 10).await.unwrap().len(), 1);
}

/// A chain that fails on a message commits nothing. There is no dead letter: the batch comes again after each lease, and
/// other partitions go on.
#[tokio::test(start_paused = true)]
async fn poison_in_a_chain_blocks_its_partition_only_s44() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 2, "retryLimit": 1})).await;
    f.push("bad", &["poison", "behind"]).await;
    for round in 0..5 {
        f.push("good", &[&round.to_string()]).await;
        let batch = f.engine.pop(Pop { partitions: 10, ..pop_of("s", GROUP, 100) }).await.unwrap();
        let (mut bad, mut good) = (Vec::new(), Vec::new());
        for message in &batch.messages {
            let list = if message.partition.name == "bad" { &mut bad } else { &mut good };
            list.push(String::from_utf8_lossy(&message.record.payload).into_owned());
        }
        assert_eq!(bad, ["poison", "behind"], "the same batch, round {round}");
        assert_eq!(good, [round.to_string()]);
        let id = f.partition_id("s", "good").await;
        let w = crate::cycles::Work::of(query(&f).await, id, &batch.lease_id);
        f.engine
            .cycle(w.cycle(Vec::new(), &good.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap();
        f.pass(2.1).await;
    }
    assert!(f.engine.dead_letters("s", None, 0, 10).await.unwrap().is_empty());
    assert_eq!(f.payloads("out", "p").await, ["0", "1", "2", "3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn a_query_on_a_backlog_starts_at_the_tail_or_at_the_oldest_s45() {
    let f = Fixture::new();
    f.push("p", &["backlog"]).await;
    let pop = |group: &str, mode| Pop { mode, ..pop_of("s", group, 10) };
    let default = f.engine.settings().default_subscription;
    assert_eq!(default, SubscriptionMode::New);
    assert!(f.engine.pop(pop(GROUP, default)).await.unwrap().messages.is_empty());
    f.push("p", &["news"]).await;
    assert_eq!(payloads(&f.engine.pop(pop(GROUP, default)).await.unwrap()), ["news"]);
    let all = f.engine.pop(pop("streams.all", SubscriptionMode::All)).await.unwrap();
    assert_eq!(payloads(&all), ["backlog", "news"]);
}

#[tokio::test(start_paused = true)]
async fn an_under_full_waiting_pop_lingers_for_more() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"minPopWaitTime": 400})).await;
    let wait = |ms| Pop { wait: Some(Duration::from_millis(ms)), ..pop_of("s", "g", 3) };
    let push_later = |after_ms: u64, payload: &'static str| {
        let engine = f.engine.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            engine.push(vec![item("s", "p", payload)]).await;
        })
    };
    f.push("p", &["0"]).await;
    let started_us = f.env.now_us();
    let late = push_later(300, "1");
    let batch = f.engine.pop(wait(5_000)).await.unwrap();
    assert_eq!(payloads(&batch), ["0", "1"]);
    assert!((400_000..450_000).contains(&(f.env.now_us() - started_us)));
    late.await.unwrap();
    f.ack_all("g", &batch).await;

    // Full at once, not waiting, or at the end of its own time: it does not linger.
    f.push("p", &["2", "3", "4", "5"]).await;
    let started_us = f.env.now_us();
    let batch = f.engine.pop(wait(5_000)).await.unwrap();
    assert_eq!((batch.messages.len(), f.env.now_us()), (3, started_us));
    f.ack_all("g", &batch).await;
    let batch = f.engine.pop(wait(150)).await.unwrap();
    assert_eq!(payloads(&batch), ["5"]);
    assert!((150_000..200_000).contains(&(f.env.now_us() - started_us)));
    f.ack_all("g", &batch).await;
    f.push("p", &["6"]).await;
    assert_eq!(payloads(&f.pop("g", 3).await), ["6"]);
}
