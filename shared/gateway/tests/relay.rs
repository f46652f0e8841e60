//! Following over a store that other processes push to.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::{Engine, PushItem, Settings as EngineSettings};
use tidewheel_gateway::{Accepted, Gateway, Settings};
use tidewheel_store::{Env, Memory};

const EVERY: Duration = Duration::from_millis(250);

fn engine(store: &Memory, env: &Env) -> Engine {
    Engine::new(Arc::new(store.clone()), env.clone(), EngineSettings::default())
}

async fn push(engine: &Engine) {
    let item = PushItem { stream: "s".into(), payload: "1".into(), ..PushItem::default() };
    engine.push(vec![item]).await;
}

async fn following(look_every: Option<Duration>) -> (Memory, Env, Gateway, Accepted) {
    let (store, env) = (Memory::new(), Env::simulated(1, 1_767_225_600_000_000, 0));
    push(&engine(&store, &env)).await;
    let settings = Settings { look_every, ..Settings::default() };
    let gateway = Gateway::new(engine(&store, &env), settings);
    let accepted = gateway.connect("/s", None).await.unwrap();
    (store, env, gateway, accepted)
}

#[tokio::test(start_paused = true)]
async fn rows_of_other_processes_show_after_a_look() {
    let (store, env, gateway, accepted) = following(Some(EVERY)).await;
    let mut connection = accepted.connection;
    let mut tail = gateway.watch(&connection);
    let another = gateway.watch(&connection);
    push(&engine(&store, &env)).await;
    tokio::time::timeout(2 * EVERY, tail.wait_for(|tail| *tail == 2)).await.unwrap().unwrap();
    let run = gateway.rows(&connection).await.unwrap().unwrap();
    assert_eq!(connection.on_rows(&run).unwrap().count(), 1);
    assert!(another.has_changed().unwrap(), "one look for all who follow");
    store.reset_meter();
    env.sleep(40 * EVERY + EVERY / 2).await;
    let units = store.meter();
    assert_eq!((units.read_units, units.write_units), (40.0, 0.0), "one read a look");
    drop((tail, another));
    env.sleep(2 * EVERY).await;
    store.reset_meter();
    env.sleep(40 * EVERY).await;
    assert_eq!(store.meter().calls, 0, "nobody follows, nobody looks");
    let mut tail = gateway.watch(&connection);
    push(&engine(&store, &env)).await;
    tokio::time::timeout(2 * EVERY, tail.wait_for(|tail| *tail == 3)).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_owns_its_store_never_looks() {
    let (store, env, gateway, accepted) = following(None).await;
    let tail = gateway.watch(&accepted.connection);
    store.reset_meter();
    env.sleep(400 * EVERY).await;
    assert_eq!(store.meter().calls, 0);
    drop(tail);
}
