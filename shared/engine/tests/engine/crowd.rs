//! A crowd of new processes at one partition: who rolls its list. The memory store tells every call.

use std::sync::Arc;

use tidewheel_engine::*;
use tidewheel_store::{Env, Faulty, faulty::Plan, meter::Call};

use crate::fixture::*;

/// As many processes as a function has under load, each of them new, push to one partition. Every refusal is paid for,
/// and so is every segment that is read for a page that another has put meanwhile.
#[tokio::test(start_paused = true)]
async fn of_a_crowd_of_cold_writers_few_roll_the_same_list() {
    const WRITERS: u64 = 64;
    const PUSHES: u64 = 4;
    let f = Fixture::new();
    f.store.start_log();
    let writers = (0..WRITERS).map(|writer| {
        let env = Env::simulated(writer, START_US, 0);
        let store = Faulty::new(Arc::new(f.store.clone()), Plan::calm(), env.clone());
        let engine = Engine::new(Arc::new(store), env, Settings::default());
        async move {
            for n in 0..PUSHES {
                let id = format!("{writer}-{n}");
                // A client sends again what a busy server did not take.
                loop {
                    let item = with_id(item("s", "p", &id), &id);
                    match engine.push(vec![item]).await.remove(0) {
                        Pushed::Refused(e) if e.is_transient() => {}
                        Pushed::Refused(e) => panic!("{id}: {e}"),
                        _ => break,
                    }
                }
            }
        }
    });
    futures_util::future::join_all(writers).await;
    assert_eq!(f.payloads("s", "p").await.len() as u64, WRITERS * PUSHES);
    let log = f.store.take_log();
    let is_roll = |c: &&Call| c.method == "commit" && c.names.iter().any(|n| n.contains("page#"));
    let (rolled, wasted): (Vec<_>, Vec<_>) =
        log.iter().filter(is_roll).partition(|c| c.outcome == "ok");
    let refused = log.iter().filter(|c| c.method == "commit" && c.outcome != "ok").count();
    println!(
        "{} rolls, {} in vain; {refused} refused commits; {} calls",
        rolled.len(),
        wasted.len(),
        log.len()
    );
    assert!(wasted.len() <= 3 * rolled.len(), "{} rolls, {} in vain", rolled.len(), wasted.len());
}
