//! Exactly-once publishers and frames: marks, takeovers, repeats and gaps. A name that ends with `streamcast_` and a
//! number is that scenario of the contract, as far as the engine decides it.

use std::sync::Arc;

use futures_util::future::join_all;
use tidewheel_engine::*;
use tidewheel_store::{
    Faulty,
    faulty::{Crash, Plan},
};

use crate::{declared::*, fixture::*};

fn row(n: u64) -> String {
    format!(r#"{{"n":{n}}}"#)
}

async fn declared() -> Fixture {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    f
}

/// The numbers in the log.
async fn numbers(f: &Fixture) -> Vec<u64> {
    let number = |row: &String| {
        serde_json::from_str::<serde_json::Value>(row).unwrap()["n"].as_u64().unwrap()
    };
    log(f).await.iter().map(number).collect()
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_answered_with_its_offsets_and_not_stored_again_streamcast_11() {
    let f = declared().await;
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    assert_eq!((claim.last_seq, claim.last_offset), (0, None));
    publish(&f.engine, frame(&[&row(0)])).await.unwrap();
    let first = publish(&f.engine, claimed(&claim, 1, &[&row(1), &row(2)])).await;
    assert_eq!((offsets(&first), first.unwrap().duplicates), (vec![Some(1), Some(2)], 0));
    let again = publish(&f.engine, claimed(&claim, 1, &[&row(1), &row(2)])).await;
    assert_eq!((offsets(&again), again.unwrap().duplicates), (vec![Some(1), Some(2)], 2));
    let half = publish(&f.engine, claimed(&claim, 2, &[&row(2), &row(3)])).await;
    assert_eq!((offsets(&half), half.unwrap().duplicates), (vec![Some(2), Some(3)], 1));
    assert_eq!(numbers(&f).await, [0, 1, 2, 3]);
    // Another process reads it in the mark.
    let again = f.restart().claim_publisher("s", "p").await.unwrap();
    assert_eq!((again.last_seq, again.last_offset), (3, Some(3)));
    let repeat = publish(&f.restart(), claimed(&again, 3, &[&row(3)])).await;
    assert_eq!(offsets(&repeat), [Some(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_process_remembers_more_ranges_than_the_mark_does() {
    let f = declared().await;
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    for n in 1..20 {
        publish(&f.engine, frame(&[&row(0)])).await.unwrap();
        publish(&f.engine, claimed(&claim, n, &[&row(n)])).await.unwrap();
    }
    let old = || claimed(&claim, 1, &[&row(1)]);
    assert_eq!(offsets(&publish(&f.engine, old()).await), [Some(1)]);
    assert_eq!(
        offsets(&publish(&f.restart(), old()).await),
        [None],
        "forgotten, and still a repeat"
    );
    assert_eq!(log(&f).await.len(), 38);
}

#[tokio::test(start_paused = true)]
async fn after_a_refused_frame_the_next_find_a_gap_streamcast_12() {
    let f = declared().await;
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    let answers = f
        .engine
        .publish(
            "s",
            vec![
                claimed(&claim, 1, &[&row(1)]),
                claimed(&claim, 2, &[r#"{"n":"bad"}"#]),
                claimed(&claim, 3, &[&row(3)]),
                claimed(&claim, 4, &[&row(4)]),
                frame(&[&row(100)]),
            ],
        )
        .await;
    assert_eq!(offsets(&answers[0]), [Some(0)]);
    assert!(matches!(answers[1], Err(PublishError::Rejected { .. })));
    assert_eq!(answers[2], Err(PublishError::Gap { expected: 2, got: 3 }));
    assert_eq!(answers[3], Err(PublishError::Gap { expected: 2, got: 4 }));
    assert_eq!(offsets(&answers[4]), [Some(1)], "a gap fails its own frame");
    let frames = (2..5).map(|n| claimed(&claim, n, &[&row(n)])).collect();
    let answers = f.engine.publish("s", frames).await;
    assert_eq!(answers.iter().flat_map(offsets).collect::<Vec<_>>(), [Some(2), Some(3), Some(4)]);
    assert_eq!(numbers(&f).await, [1, 100, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_takes_over_and_counts_what_was_committed_streamcast_13() {
    let f = declared().await;
    let old = f.engine.claim_publisher("s", "p").await.unwrap();
    let first = publish(&f.engine, claimed(&old, 1, &[&row(1)])).await;
    assert_eq!(offsets(&first), [Some(0)]);
    let other = f.restart();
    let frames = (2..5).map(|n| claimed(&old, n, &[&row(n)])).collect();
    let (landed, new) =
        tokio::join!(f.engine.publish("s", frames), other.claim_publisher("s", "p"));
    let new = new.unwrap();
    let late = publish(&f.engine, claimed(&old, 5, &[&row(5)])).await;
    assert_eq!(late, Err(PublishError::Superseded));
    let committed = landed.iter().filter(|l| l.is_ok()).count() as u64;
    assert!(new.last_seq == 1 || new.last_seq == 1 + committed, "{new:?}: {landed:?}");
    let rest = (new.last_seq + 1..8).map(|n| claimed(&new, n, &[&row(n)])).collect();
    assert!(other.publish("s", rest).await.iter().all(Result::is_ok));
    assert_eq!(numbers(&f).await, [1, 2, 3, 4, 5, 6, 7], "nothing twice and nothing missing");
}

/// Frames of a frozen claimant arrive after the takeover: nothing of them lands.
#[tokio::test(start_paused = true)]
async fn a_frozen_publisher_lands_nothing_after_a_takeover() {
    let f = declared().await;
    let plan = Plan { late: 1.0, late_calls: 1_000_000, ..Plan::none() };
    let faulty = Faulty::new(Arc::new(f.store.clone()), plan, f.env.clone());
    let frozen = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
    let old = f.engine.claim_publisher("s", "p").await.unwrap();
    let lost = publish(&frozen, claimed(&old, 1, &[&row(1)])).await;
    assert!(
        matches!(lost, Err(PublishError::Unknown { .. })),
        "it is not said that it failed: {lost:?}"
    );
    let new = f.engine.claim_publisher("s", "p").await.unwrap();
    publish(&f.engine, claimed(&new, 1, &[&row(1)])).await.unwrap();
    faulty.settle().await;
    assert_eq!(numbers(&f).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn frames_share_commits_and_a_gap_fails_its_own_streamcast_14() {
    let f = declared().await;
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    let before = f.engine.counters().0["appends"];
    let frames = (0..25u64).map(|n| {
        let (engine, claim) = (f.engine.clone(), claim.clone());
        async move {
            let frame = match n {
                10 => claimed(&claim, 1, &[&row(n), &row(n + 100)]),
                20 => claimed(&claim, 9, &[&row(n)]),
                _ => frame(&[&row(n), &row(n + 100)]),
            };
            publish(&engine, frame).await
        }
    });
    let answers = join_all(frames).await;
    assert_eq!(answers[20], Err(PublishError::Gap { expected: 3, got: 9 }));
    let numbers = numbers(&f).await;
    assert_eq!(numbers.len(), 48);
    for (n, answer) in (0..).zip(&answers).filter(|(n, _)| *n != 20) {
        let offsets = offsets(answer);
        let [Some(a), Some(b)] = offsets[..] else { panic!("{answer:?}") };
        assert_eq!((b, numbers[a as usize], numbers[b as usize]), (a + 1, n, n + 100));
    }
    let commits = f.engine.counters().0["appends"] - before;
    assert!(commits <= 3, "{commits} commits");
    let alone = Declaration { group_commit: false, ..declaration(NUMBERS) };
    f.engine.declare("s", alone).await.unwrap();
    let before = f.engine.counters().0["appends"];
    let frames = (0..5).map(|n| frame(&[&row(n)])).collect();
    assert!(f.engine.publish("s", frames).await.iter().all(Result::is_ok));
    assert_eq!(f.engine.counters().0["appends"] - before, 5);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_in_the_same_commit_gets_the_offset_of_the_first() {
    let f = declared().await;
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    let twice = vec![claimed(&claim, 1, &[&row(1)]), claimed(&claim, 1, &[&row(1), &row(2)])];
    let answers = f.engine.publish("s", twice).await;
    assert_eq!(
        (offsets(&answers[0]), offsets(&answers[1])),
        (vec![Some(0)], vec![Some(0), Some(1)])
    );
    assert_eq!(answers[1].as_ref().unwrap().duplicates, 1);
    assert_eq!(numbers(&f).await, [1, 2]);
}

/// More publishers than the head has room for: each has its mark, wherever it lies.
#[tokio::test(start_paused = true)]
async fn many_publishers_have_their_marks() {
    let f = Fixture::new();
    let publishers = 3 * limits::HEAD_MARKS as u64;
    let few = Declaration { max_publishers: publishers as usize, ..declaration(NUMBERS) };
    f.engine.declare("s", few).await.unwrap();
    let mut claims = Vec::new();
    for p in 0..publishers {
        claims.push(f.engine.claim_publisher("s", &format!("p{p}")).await.unwrap());
    }
    for seq in 1..4 {
        let frames = claims
            .iter()
            .map(|c| publish(&f.engine, claimed(c, seq, &[&row(seq)])))
            .collect::<Vec<_>>();
        let landed = join_all(frames).await;
        assert!(landed.iter().all(Result::is_ok), "{landed:?}");
    }
    let other = f.restart();
    for (p, claim) in claims.iter().enumerate() {
        let repeat = publish(&other, claimed(claim, 3, &[&row(3)])).await.unwrap();
        assert!(repeat.duplicates == 1 && repeat.offsets[0].is_some(), "{p}: {repeat:?}");
        let again = other.claim_publisher("s", &format!("p{p}")).await.unwrap();
        assert_eq!(
            (again.last_seq, again.epoch, again.last_offset),
            (3, claim.epoch + 1, repeat.offsets[0])
        );
        assert_eq!(
            publish(&other, claimed(claim, 4, &[&row(4)])).await,
            Err(PublishError::Superseded)
        );
    }
    let refused = f.engine.claim_publisher("s", "one more").await;
    assert!(
        matches!(refused, Err(Error::Limit { limit, .. }) if limit == publishers as usize),
        "{refused:?}"
    );
    assert_eq!(log(&f).await.len(), 3 * publishers as usize);
    let head = f.store.items().into_iter().find(|(key, _)| key.sk == "head").unwrap().1;
    assert!(head.size() < 4096, "the head has {} bytes", head.size());
}

/// A publisher dies in each call; its successor claims and sends on from the mark. `late` in the head, or in an item.
#[tokio::test(start_paused = true)]
async fn a_publisher_may_die_anywhere_and_nothing_is_lost_or_twice_streamcast_15() {
    for others in [0, limits::HEAD_MARKS] {
        for crash in [Crash::Before, Crash::After] {
            for call in 1.. {
                let f = declared().await;
                f.engine.claim_publisher("s", "p").await.unwrap();
                for p in 0..others {
                    f.engine.claim_publisher("s", &format!("o{p}")).await.unwrap();
                }
                let faulty = Faulty::new(Arc::new(f.store.clone()), Plan::none(), f.env.clone());
                faulty.crash_at(call, crash);
                let engine = Engine::new(Arc::new(faulty), f.env.clone(), Settings::default());
                let work = async {
                    let claim = engine.claim_publisher("s", "p").await.unwrap();
                    for n in claim.last_seq + 1..4 {
                        publish(&engine, claimed(&claim, n, &[&row(n)])).await.unwrap();
                    }
                };
                let wait = std::time::Duration::from_secs(60);
                let ended = tokio::time::timeout(wait, work).await.is_ok();
                let successor = f.restart();
                let claim = successor.claim_publisher("s", "p").await.unwrap();
                for n in claim.last_seq + 1..6 {
                    publish(&successor, claimed(&claim, n, &[&row(n)])).await.unwrap();
                }
                assert_eq!(numbers(&f).await, [1, 2, 3, 4, 5], "dead in call {call}");
                if ended {
                    break;
                }
            }
        }
    }
}

/// Every commit happens and its reply is lost, or happens late.
#[tokio::test(start_paused = true)]
async fn lost_replies_are_looked_up_before_anybody_is_answered() {
    for plan in [
        Plan { lose_reply: 1.0, ..Plan::none() },
        Plan { late: 1.0, late_calls: 3, ..Plan::none() },
        Plan { lose_reply: 0.4, contend: 0.2, throttle: 0.2, lose_request: 0.2, ..Plan::none() },
    ] {
        let f = declared().await;
        let claim = f.engine.claim_publisher("s", "p").await.unwrap();
        let faulty = Faulty::new(Arc::new(f.store.clone()), plan, f.env.clone());
        let engine = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
        for n in 1..30 {
            let landed = publish(&engine, claimed(&claim, n, &[&row(n)])).await;
            assert_eq!(landed.unwrap().duplicates, 0, "{n}");
        }
        faulty.settle().await;
        assert_eq!(numbers(&f).await, (1..30).collect::<Vec<_>>());
    }
}
