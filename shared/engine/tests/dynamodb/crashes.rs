//! A process that dies at any of its calls of the deployed store leaves nothing half done.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::*;
use tidewheel_store::{
    Faulty,
    faulty::{Crash, Plan},
};

use crate::fixture::*;

/// Records that each life pushes. The last is too large for an item.
const IDS: [&str; 3] = ["a", "b", "c"];

fn batch() -> Vec<PushItem> {
    let large = "x".repeat(20_000);
    let payloads = ["0", "1", large.as_str()];
    IDS.iter().zip(payloads).map(|(id, p)| with_id(item("s", "p", p), id)).collect()
}

/// Pushes, pops and acknowledges, as far as the process lives. True if it came to the end.
async fn life(f: &Fixture, faulty: &Faulty) -> bool {
    let engine = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
    let life = async {
        engine.push(batch()).await;
        let popped = engine.pop(pop_of("s", "g", 1)).await.expect("a pop");
        let acks = popped.messages.iter().map(|m| ack_of(m, Verdict::Completed, &popped)).collect();
        engine.ack(Some("g"), acks).await.expect("an ack");
    };
    tokio::time::timeout(Duration::from_secs(60), life).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_call_leaves_nothing_half_done() {
    for crash in [Crash::Before, Crash::AfterBlobs, Crash::After] {
        let mut deaths = 0;
        for call in 1.. {
            let at = format!("{crash:?} of call {call}");
            let f = Fixture::new();
            let faulty = Faulty::new(Arc::new(f.store.clone()), Plan::none(), f.env.clone());
            faulty.crash_at(call, crash);
            let survived = life(&f, &faulty).await;

            // An heir sees all of the push or nothing, and a client that repeats it stores what is missing, once.
            let heir = f.restart();
            let there = match heir.stream("s").await.expect("a read") {
                Some(_) => f.payloads("s", "p").await.len(),
                None => 0,
            };
            assert!(there == 0 || there == IDS.len(), "{at}: {there} records");
            for pushed in heir.push(batch()).await {
                match pushed {
                    Pushed::Queued { .. } => assert_eq!(there, 0, "{at}"),
                    Pushed::Duplicate { .. } => assert_eq!(there, IDS.len(), "{at}"),
                    Pushed::Refused(e) => panic!("{at}: {e}"),
                }
            }
            assert_eq!(f.payloads("s", "p").await.len(), IDS.len(), "{at}");

            // What was acknowledged does not come back, and all the rest does once the dead one's lease has passed.
            f.pass(3600.0).await;
            let left = heir.pop(pop_of("s", "g", 10)).await.expect("a pop").messages.len();
            let acknowledged = IDS.len() - left;
            assert!(acknowledged <= 1, "{at}: {acknowledged} were acknowledged");
            if survived {
                assert_eq!(acknowledged, 1, "{at}");
                break;
            }
            deaths += 1;
        }
        assert!(deaths >= 5, "{crash:?}: only {deaths} calls");
    }
}
