//! Pushing: offsets, order, deduplication, index pages, and what it costs.

use tidewheel_engine::*;

use crate::fixture::*;

#[tokio::test(start_paused = true)]
async fn offsets_are_dense_and_payloads_come_back_verbatim() {
    let f = Fixture::new();
    let odd = ["{\"n\": 1.0, \"b\": 2,  \"a\": 12345678901234567890}", "null", " 1 "];
    let pushed = f.push("p", &odd).await;
    assert_eq!(pushed.iter().map(offset).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(offset(&f.push("p", &["4"]).await[0]), 3);
    assert_eq!(offset(&f.push("q", &["5"]).await[0]), 0);
    assert_eq!(f.payloads("s", "p").await, [odd[0], odd[1], odd[2], "4"]);
}

#[tokio::test(start_paused = true)]
async fn one_push_may_span_streams_and_partitions() {
    let f = Fixture::new();
    let items = vec![
        item("a", "", "1"),
        item("b", "x", "2"),
        item("a", "Default", "3"),
        item("a", "y", "4"),
        item("", "", "5"),
    ];
    let pushed = f.engine.push(items).await;
    assert_eq!(offset(&pushed[0]), 0);
    assert_eq!(offset(&pushed[2]), 1, "an empty partition is the default one");
    assert_eq!((offset(&pushed[1]), offset(&pushed[3])), (0, 0));
    assert!(matches!(&pushed[4], Pushed::Refused(Error::Name { .. })), "{:?}", pushed[4]);
    assert_eq!(f.payloads("a", "Default").await, ["1", "3"]);
}

#[tokio::test(start_paused = true)]
async fn times_and_ids_sort_like_offsets_s43() {
    let f = Fixture::new();
    let many: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    f.push("p", &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for n in 500..600 {
        f.push("p", &[&n.to_string()]).await;
    }
    let id = f.partition_id("s", "p").await;
    let records = f.engine.read(&id, 0, 1000, usize::MAX).await.unwrap().records;
    let mut sorted = records.clone();
    sorted.sort_by_key(|r| (r.time_us / 1000, r.id.to_string()));
    assert_eq!(sorted, records);
    assert_eq!(records.len(), 600);
}

#[tokio::test(start_paused = true)]
async fn a_writer_with_a_slow_clock_does_not_turn_time_back() {
    let f = Fixture::new();
    let slow =
        Fixture::another(&f.store, &tidewheel_store::Env::simulated(9, START_US, -60_000_000));
    f.push("p", &["first"]).await;
    slow.push(vec![item("s", "p", "second")]).await;
    let id = f.partition_id("s", "p").await;
    let records = f.engine.read(&id, 0, 10, usize::MAX).await.unwrap().records;
    assert!(records[0].time_us <= records[1].time_us);
    assert!(records[0].id.to_string() < records[1].id.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_id_answers_with_the_original_s26() {
    let f = Fixture::new();
    let first = f.engine.push(vec![with_id(item("s", "p", "1"), "a")]).await;
    let Pushed::Queued { id, offset } = first[0] else { panic!("{first:?}") };
    let original = Pushed::Duplicate { id: Some(id), offset: Some(offset) };
    assert_eq!(
        f.engine.push(vec![with_id(item("s", "p", "2"), "a")]).await,
        std::slice::from_ref(&original)
    );
    // Another process knows nothing and finds it all the same.
    assert_eq!(f.restart().push(vec![with_id(item("s", "p", "2"), "a")]).await, [original]);
    let other = f.engine.push(vec![with_id(item("s", "q", "1"), "a")]).await;
    assert!(matches!(other[0], Pushed::Queued { .. }), "another partition is another scope");
    f.pass(3601.0).await;
    let later = f.engine.push(vec![with_id(item("s", "p", "3"), "a")]).await;
    assert!(matches!(later[0], Pushed::Queued { offset: 1, .. }), "after the window: {later:?}");
    let again = f.restart().push(vec![with_id(item("s", "p", "4"), "a")]).await;
    assert!(matches!(again[0], Pushed::Duplicate { offset: Some(1), .. }), "{again:?}");
    assert_eq!(f.payloads("s", "p").await, ["1", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_in_one_request_collapses_also_without_a_window_s27() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"dedupWindowSeconds": 0})).await;
    let twice = || vec![with_id(item("s", "p", "1"), "a"), with_id(item("s", "p", "2"), "a")];
    let pushed = f.engine.push(twice()).await;
    let Pushed::Queued { id, .. } = pushed[0] else { panic!("{pushed:?}") };
    assert_eq!(pushed[1], Pushed::Duplicate { id: Some(id), offset: Some(0) });
    assert_eq!(
        offset(&f.engine.push(twice()).await[0]),
        1,
        "without a window a second request is new"
    );
    assert_eq!(f.payloads("s", "p").await, ["1", "1"]);
}

#[tokio::test(start_paused = true)]
async fn racing_pushes_of_one_id_store_one_s26() {
    for batch in [1usize, 100] {
        let f = Fixture::new();
        let engines: Vec<Engine> = (0..8).map(|_| f.restart()).collect();
        let pushes = engines.iter().map(|engine| {
            let items = (0..batch).map(|n| with_id(item("s", "p", "x"), &format!("id {n}")));
            engine.push(items.collect())
        });
        let outcomes = futures_util::future::join_all(pushes).await;
        assert_eq!(f.payloads("s", "p").await.len(), batch);
        for n in 0..batch {
            let queued = outcomes.iter().filter(|o| matches!(o[n], Pushed::Queued { .. })).count();
            let duplicate =
                outcomes.iter().filter(|o| matches!(o[n], Pushed::Duplicate { .. })).count();
            assert_eq!((queued, duplicate), (1, 7), "id {n}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_record_is_found_through_pages_and_head() {
    let f = Fixture::new();
    let mut expected = Vec::new();
    for n in 0..130 {
        let payload = format!("{n}");
        f.engine.push(vec![with_id(item("s", "p", &payload), &payload)]).await;
        expected.push(payload);
    }
    assert!(f.engine.counters().0["rolls"] >= 5);
    assert_eq!(f.payloads("s", "p").await, expected);
    let cold = f.restart();
    let id = f.partition_id("s", "p").await;
    for from in [0u64, 1, 23, 24, 25, 77, 129] {
        let read = cold.read(&id, from, 10, usize::MAX).await.unwrap();
        let got: Vec<_> = read.records.iter().map(|r| r.payload.clone()).collect();
        let want: Vec<_> = expected.iter().skip(from as usize).take(10).collect();
        assert!(got.iter().eq(want), "from {from}");
    }
    // Ids that left the head with a page are still refused, by a process that never saw them.
    for n in [0, 23, 24, 100, 129] {
        let again = cold.push(vec![with_id(item("s", "p", "again"), &format!("{n}"))]).await;
        assert!(
            matches!(again[0], Pushed::Duplicate { offset: Some(o), .. } if o == n),
            "{again:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_writers_get_dense_offsets() {
    let f = Fixture::new();
    let engines: Vec<Engine> = (0..16).map(|_| f.restart()).collect();
    let pushes = engines.iter().enumerate().map(|(w, engine)| async move {
        let mut offsets = Vec::new();
        for n in 0..20 {
            let pushed =
                engine.push(vec![item("s", "p", &format!("{w}.{n}")), item("s", "p", "x")]).await;
            offsets.extend(pushed.iter().map(offset));
        }
        offsets
    });
    let mut all: Vec<u64> = futures_util::future::join_all(pushes).await.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..640));
    assert_eq!(f.payloads("s", "p").await.len(), 640);
}

#[tokio::test(start_paused = true)]
async fn limits_are_named() {
    let f = Fixture::new();
    let long = "n".repeat(limits::NAME_BYTES + 1);
    let big = "x".repeat(limits::PAYLOAD_BYTES + 1);
    for refused in [item(&long, "", "1"), item("s", &long, "1"), item("s", "", &big)] {
        let Pushed::Refused(error) = &f.engine.push(vec![refused]).await[0] else { panic!() };
        let text = error.to_string();
        let limit = [limits::NAME_BYTES, limits::PAYLOAD_BYTES].map(|l| l.to_string());
        assert!(limit.iter().any(|l| text.contains(l.as_str())), "{text}");
    }
    assert_eq!(f.engine.stream("s").await.unwrap(), None, "nothing came into existence");
}

#[tokio::test(start_paused = true)]
async fn ids_that_another_process_rolled_into_a_page_are_refused() {
    let f = Fixture::new();
    let ids: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let push = |engine: Engine, id: String| async move {
        engine.push(vec![with_id(item("s", "p", "x"), &id)]).await.remove(0)
    };
    // This process knows the ids up to the middle of the head's list; another fills the list and rolls it.
    for id in &ids[..10] {
        push(f.engine.clone(), id.clone()).await;
    }
    let other = f.restart();
    for id in &ids[10..] {
        push(other.clone(), id.clone()).await;
    }
    for (n, id) in ids.iter().enumerate() {
        let again = push(f.engine.clone(), id.clone()).await;
        assert!(
            matches!(again, Pushed::Duplicate { offset: Some(o), .. } if o == n as u64),
            "{id}: {again:?}"
        );
    }
}
