//! Reads by offset over many partitions, by time, and which partitions have changed.

use std::time::Duration;

use tidewheel_engine::*;

use crate::fixture::*;

fn entry(partition: &str, offset: u64) -> FetchEntry {
    FetchEntry { stream: "s".into(), partition: partition.into(), offset, bytes: 1 << 20 }
}

fn fetch(entries: Vec<FetchEntry>) -> Fetch {
    Fetch { entries, bytes: 1 << 20, min_bytes: 1, wait: None }
}

fn read(fetched: &Fetched) -> Vec<(u64, String)> {
    match fetched {
        Fetched::Records(records, _) => records
            .iter()
            .map(|r| (r.offset, String::from_utf8_lossy(&r.payload).into_owned()))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn entries_are_answered_in_order_and_nobody_notices() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    f.push("q", &["a"]).await;
    let before = f.store.items();
    let mut entries = vec![entry("q", 0), entry("p", 1), entry("p", 3), entry("p", 4)];
    entries.push(entry("never written", 0));
    entries.push(FetchEntry { stream: "nowhere".into(), ..entry("p", 0) });
    let found = f.engine.fetch(&fetch(entries)).await.unwrap();
    assert_eq!(read(&found[0]), [(0, "a".into())]);
    assert_eq!(read(&found[1]), [(1, "1".into()), (2, "2".into())]);
    assert_eq!(found[2], Fetched::Records(Vec::new(), Extent { floor: 0, tail: 3 }));
    assert_eq!(found[3], Fetched::OutOfRange(Extent { floor: 0, tail: 3 }));
    assert_eq!(found[4], Fetched::Records(Vec::new(), Extent { floor: 0, tail: 0 }));
    assert_eq!(found[5], Fetched::NoStream);
    assert_eq!(f.store.items(), before);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_bounded_for_each_entry_and_for_all() {
    let f = Fixture::new();
    for partition in ["p", "q", "r"] {
        f.push(partition, &["\"0123456789\"", "\"0123456789\"", "\"0123456789\""]).await;
    }
    let small = |partition, bytes| FetchEntry { bytes, ..entry(partition, 0) };
    let counts = async |fetch: &Fetch| -> Vec<usize> {
        f.engine.fetch(fetch).await.unwrap().iter().map(|e| read(e).len()).collect()
    };
    let each = fetch(vec![small("p", 1), small("q", 24), small("r", 1000)]);
    assert_eq!(counts(&each).await, [1, 2, 3]);
    let all = || vec![small("p", 1000), small("q", 1000), small("r", 1000)];
    assert_eq!(counts(&Fetch { bytes: 1, ..fetch(all()) }).await, [1, 0, 0]);
    assert_eq!(counts(&Fetch { bytes: 48, ..fetch(all()) }).await, [3, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_waits_for_enough_or_for_its_time() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let waiting = |offset, min_bytes| Fetch {
        wait: Some(Duration::from_secs(20)),
        min_bytes,
        ..fetch(vec![entry("p", offset), entry("new", 0)])
    };
    let started = f.env.now_us();
    assert_eq!(read(&f.engine.fetch(&waiting(0, 1)).await.unwrap()[0]).len(), 1);
    assert_eq!(f.env.now_us(), started, "there was something");

    let (engine, pushing) = (f.engine.clone(), f.engine.clone());
    let fetch = waiting(1, 4);
    let waiter = tokio::spawn(async move { engine.fetch(&fetch).await });
    f.pass(1.0).await;
    pushing.push(vec![item("s", "p", "12")]).await;
    f.pass(1.0).await;
    assert!(!waiter.is_finished(), "two bytes are not four");
    pushing.push(vec![item("s", "new", "34")]).await;
    let found = waiter.await.unwrap().unwrap();
    assert_eq!(
        (read(&found[0]), read(&found[1])),
        (vec![(1, "12".into())], vec![(0, "34".into())])
    );
    assert!(f.env.now_us() - started < 2_100_000);

    let started = f.env.now_us();
    let found = f.engine.fetch(&waiting(2, 100)).await.unwrap();
    assert!(read(&found[0]).is_empty());
    assert!((20_000_000..20_600_000).contains(&(f.env.now_us() - started)));
    let wrong = f.engine.fetch(&waiting(99, 100)).await.unwrap();
    assert!(matches!(wrong[0], Fetched::OutOfRange(_)));
    assert!(f.env.now_us() - started < 20_600_000, "an error is answered at once");
}

#[tokio::test(start_paused = true)]
async fn a_time_is_found_in_a_partition() {
    let f = Fixture::new();
    for n in 0..50 {
        f.push("p", &[&n.to_string(), "again"]).await;
        f.pass(1.0).await;
    }
    let at = |partition: &str, time_us| TimeEntry {
        stream: "s".into(),
        partition: partition.into(),
        time_us,
    };
    let second = |n: i64| START_US + n * 1_000_000;
    let entries = vec![
        at("p", 0),
        at("p", second(7)),
        at("p", second(7) + 1),
        at("p", second(50)),
        at("q", 0),
        TimeEntry { stream: "nowhere".into(), ..at("p", 0) },
    ];
    let found = f.engine.offsets_at(&entries).await.unwrap();
    let extent = Extent { floor: 0, tail: 100 };
    assert_eq!(found[0], TimeFound::At(Some((0, second(0))), extent));
    assert_eq!(found[1], TimeFound::At(Some((14, second(7))), extent));
    assert_eq!(found[2], TimeFound::At(Some((16, second(8))), extent));
    assert_eq!(found[3], TimeFound::At(None, extent));
    assert_eq!(found[4], TimeFound::At(None, Extent { floor: 0, tail: 0 }));
    assert_eq!(found[5], TimeFound::NoStream);
}

async fn pass(f: &Fixture, since_us: Option<i64>, limit: usize) -> Vec<ChangedPartition> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let entry = ChangedEntry { stream: "s".into(), since_us, after, limit };
        match f.engine.changed(&entry).await.unwrap() {
            Changed::Page(partitions, next) => {
                assert!(partitions.len() <= limit);
                all.extend(partitions);
                match next {
                    Some(next) => after = Some(next),
                    None => return all,
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_lists_each_written_partition_once() {
    let f = Fixture::new();
    for n in 0..250 {
        f.push(&format!("p{n}"), &["x", "y"]).await;
    }
    for limit in [7, 100, 1000] {
        let listed = pass(&f, None, limit).await;
        let mut names: Vec<_> = listed.iter().map(|p| p.info.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!((listed.len(), names.len()), (250, 250), "limit {limit}");
        assert!(listed.iter().all(|p| p.extent == Extent { floor: 0, tail: 2 }));
    }
    f.pass(60.0).await;
    let safe_us = f.engine.safe_time_us();
    assert!(pass(&f, Some(safe_us), 100).await.is_empty());
    f.push("p42", &["z"]).await;
    f.push("late", &["z"]).await;
    let mut names: Vec<_> = pass(&f, Some(safe_us), 1)
        .await
        .into_iter()
        .map(|p| (p.info.name, p.extent.tail))
        .collect();
    names.sort();
    assert_eq!(names, [("late".to_owned(), 1), ("p42".to_owned(), 3)]);

    let entry = |stream: &str, after: &str| ChangedEntry {
        stream: stream.into(),
        since_us: None,
        after: Some(after.into()),
        limit: 1,
    };
    assert_eq!(f.engine.changed(&entry("s", "x")).await.unwrap(), Changed::BadCursor);
    assert_eq!(f.engine.changed(&entry("nowhere", "")).await.unwrap(), Changed::NoStream);
}

#[tokio::test(start_paused = true)]
async fn a_survey_counts_what_is_there_and_when_it_came() {
    let f = Fixture::new();
    for n in 0..100 {
        f.push(&format!("p{}", n % 3), &["x", "y"]).await;
        f.pass(60.0).await;
    }
    f.engine.push(vec![item("other.task", "p", "z")]).await;
    let all = f.engine.survey(&SurveyFilter::default()).await.unwrap();
    assert!(all.complete);
    let counted: Vec<_> =
        all.streams.iter().map(|s| (s.info.name.as_str(), s.partitions, s.records)).collect();
    assert_eq!(counted, [("other.task", 1, 1), ("s", 3, 200)]);
    assert_eq!(all.streams[1].last_us, Some(START_US + 99 * 60_000_000));
    let labelled = SurveyFilter { task: Some("task".into()), ..SurveyFilter::default() };
    assert_eq!(f.engine.survey(&labelled).await.unwrap().streams.len(), 1);

    let named = SurveyFilter { stream: Some("s".into()), ..SurveyFilter::default() };
    let hour = 3_600_000_000;
    let volume = f.engine.volume(&named, START_US, START_US + 2 * hour, hour).await.unwrap();
    assert!(volume.complete);
    assert_eq!(
        volume.points.into_iter().collect::<Vec<_>>(),
        [(START_US, 120), (START_US + hour, 80)]
    );
    let minutes = (START_US + 600_000_000, START_US + 1_200_000_000);
    let volume = f.engine.volume(&named, minutes.0, minutes.1, 60_000_000).await.unwrap();
    assert_eq!(volume.points.len(), 10);
    assert_eq!(volume.points.values().sum::<u64>(), 20);
}
