//! The control plane in processes that die.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tidewheel_api::{Api, Settings, router};
use tidewheel_engine::Engine;
use tidewheel_store::{
    Env, Faulty,
    faulty::{Crash, Plan},
};

use crate::support::{START_US, Server};

impl Server {
    /// A process that begins over what another has stored.
    fn restarted(&self) -> Self {
        let env = Env::simulated(9, START_US + 1_000_000, 0);
        let faults = Arc::new(Faulty::new(self.store.clone(), Plan::none(), env.clone()));
        let engine = Engine::new(faults.clone(), env, tidewheel_engine::Settings::default());
        let api = Api::new(engine, Settings::default());
        let router = router(api.clone());
        Self { router, api, store: self.store.clone(), faults }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_the_middle_leaves_what_the_next_one_finishes() {
    // Where a process dies: before or after its k-th call of the store.
    let mut whole = 0;
    for at in 1..200 {
        let mut died = false;
        for crash in [Crash::Before, Crash::After] {
            let server = Server::new();
            server.declare("s").await;
            let before_calls = server.faults.calls();
            server.faults.crash_at(before_calls + at, crash);
            // A process that is dead answers nobody.
            let asked = async {
                server.desire("s", "k", 1, "serving").await.with(202);
            };
            died |= tokio::time::timeout(Duration::from_secs(60), asked).await.is_err();
            let next = server.restarted();
            next.api.finish_operations().await.unwrap();
            let before = next.view("s").await;
            // Either nothing of it is there, or all of it.
            let accepted = before["revision"] == 2;
            assert_eq!(before["observed"]["state"], if accepted { "serving" } else { "stopped" });
            let receipt = next.desire("s", "k", 1, "serving").await.with(202);
            assert_eq!(next.operation(&receipt).await["status"], "succeeded", "{at}");
            let view = next.view("s").await;
            assert_eq!(
                (&view["revision"], &view["observed"]["generation"]),
                (&json!(2), &json!(1))
            );
            assert_eq!(view["pending"], Value::Null);
        }
        if !died {
            whole = at;
            break;
        }
    }
    assert!(whole > 8, "{whole}: every call was tried");
}
