//! A process dies in every call of the store and at every post, and what it left is set right: nobody lacks a row, nobody
//! who cannot tell gets one twice.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use tidewheel_gateway::live::Work;
use tidewheel_store::faulty::{Crash, Plan};
use tokio::sync::Notify;

use crate::world::{Act, Client, Kind, World, settle};

/// Longer than any lease, and than anything that lives.
const DEAD_AFTER: Duration = Duration::from_secs(300);

const KINDS: [Kind; 4] = [Kind::Native, Kind::Streamcast, Kind::Streamcast, Kind::Native];

/// A cohort that sleeps, and rows for two flushes, of which the doorbell was rung.
async fn awake(seed: u64) -> (World, Vec<Client>) {
    let w = World::new(seed);
    w.push(&[json!(0)]).await;
    let mut clients = Vec::new();
    for (n, kind) in KINDS.into_iter().enumerate() {
        let mut client = Client::new(&format!("c{n}"), kind, 0);
        client.connect(&w).await;
        clients.push(client);
    }
    w.drain().await;
    w.push(&vec![json!(1); 129]).await;
    (w, clients)
}

/// Somebody who is to be greeted, with rows to catch up on and a cohort to join if there is one.
async fn newcomer(seed: u64, kind: Kind, alone: bool) -> (World, Vec<Client>) {
    let w = World::new(seed);
    w.push(&[json!(0), json!(1)]).await;
    let mut clients = Vec::new();
    if !alone {
        let mut first = Client::new("first", Kind::Streamcast, 0);
        first.connect(&w).await;
        w.drain().await;
        clients.push(first);
    }
    let mut client = Client::new("new", kind, 0);
    client.connect(&w).await;
    clients.push(client);
    (w, clients)
}

/// Does what was asked for in a process that dies in its `call`-th call. False if it needed fewer.
async fn dies_in_call(w: &World, call: u64, crash: Crash) -> bool {
    let (faulty, live) = w.faulty(Plan::none());
    faulty.crash_at(call, crash);
    let work = w.take_asked().unwrap();
    let _ = tokio::time::timeout(DEAD_AFTER, live.work(&work, w.stop())).await;
    faulty.calls() >= call
}

/// Does what was asked for in a process that dies in its `post`-th post, which is sent or not. False if it needed fewer.
async fn dies_at_post(w: &World, post: u64, sent: bool) -> bool {
    let death = Arc::new(Notify::new());
    let dying = Arc::clone(&death);
    w.sockets.script(move |n, _| {
        if n != post {
            return Act::Deliver;
        }
        dying.notify_one();
        Act::Hang { sent }
    });
    let work = w.take_asked().unwrap();
    let (_, live) = w.process();
    let died = tokio::select! {
        done = live.work(&work, w.stop()) => { done.unwrap(); false }
        () = async {
            death.notified().await;
            // What was on its way arrives.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        } => true,
    };
    assert_eq!(died, w.sockets.posts() >= post);
    died
}

async fn set_right(w: &World, clients: &mut [Client]) {
    w.push(&[json!("after")]).await;
    settle(w, clients).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_delivery_in_every_call() {
    for crash in Crash::ALL {
        let mut calls = 0;
        for call in 1.. {
            let (w, mut clients) = awake(call).await;
            if !dies_in_call(&w, call, crash).await {
                break;
            }
            set_right(&w, &mut clients).await;
            calls = call;
        }
        assert!(calls >= 10, "{crash:?}: {calls}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_delivery_at_every_post() {
    for sent in [false, true] {
        let mut posts = 0;
        for post in 1.. {
            // Every tenth: a flush has many alike.
            let post = 1 + (post - 1) * 10;
            let (w, mut clients) = awake(post).await;
            if !dies_at_post(&w, post, sent).await {
                break;
            }
            set_right(&w, &mut clients).await;
            posts = post;
        }
        assert!(posts >= 250, "{posts}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_greeting_in_every_call() {
    for kind in [Kind::Native, Kind::Streamcast] {
        for alone in [true, false] {
            for crash in Crash::ALL {
                let mut calls = 0;
                for call in 1.. {
                    let (w, mut clients) = newcomer(call, kind, alone).await;
                    if !dies_in_call(&w, call, crash).await {
                        break;
                    }
                    set_right(&w, &mut clients).await;
                    calls = call;
                }
                assert!(calls >= 6, "{kind:?} {alone} {crash:?}: {calls}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_greeting_at_every_post() {
    for kind in [Kind::Native, Kind::Streamcast] {
        for sent in [false, true] {
            let mut posts = 0;
            for post in 1.. {
                let (w, mut clients) = newcomer(post, kind, false).await;
                if !dies_at_post(&w, post, sent).await {
                    break;
                }
                set_right(&w, &mut clients).await;
                posts = post;
            }
            assert!(posts >= 2, "{posts}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_whoever_connects_or_leaves_in_every_call() {
    for crash in Crash::ALL {
        for call in 1..40 {
            let (w, mut clients) = awake(call).await;
            w.drain().await;
            let (faulty, live) = w.faulty(Plan::none());
            faulty.crash_at(call, crash);
            // The socket of one ends, and the process that is told of it dies.
            let gone = clients.remove(1);
            let gone = gone.connection();
            w.sockets.cut(&gone);
            let dying = live.disconnect(&gone);
            let done = tokio::time::timeout(DEAD_AFTER, dying).await.is_ok();
            set_right(&w, &mut clients).await;
            for client in &mut clients {
                client.leave(&w).await;
            }
            w.push(&[json!("nobody")]).await;
            w.drain().await;
            assert_eq!(w.items("wp#"), [] as [String; 0], "{crash:?} in call {call}");
            assert_eq!(w.items("r#"), [] as [String; 0], "{crash:?} in call {call}");
            if done {
                break;
            }
            assert!(call < 39);
        }
    }
}

/// A delivery stands still, clocks and all, in one of its posts until its lease is over and another has done its work;
/// then it goes on.
#[tokio::test(start_paused = true)]
async fn a_frozen_delivery_that_thaws_changes_nothing() {
    for post in [1, 2, 3, 4, 5, 100, 250, 260] {
        for sent in [true, false] {
            let (w, mut clients) = awake(post).await;
            let ice = Ice::default();
            let freezes = ice.clone();
            w.sockets.script(move |n, _| {
                if n != post {
                    return Act::Deliver;
                }
                freezes.freeze();
                Act::Hang { sent }
            });
            let (_, live) = w.process();
            let (work, stop) = (w.take_asked().unwrap(), w.stop());
            let zombie =
                tokio::spawn(ice.clone().around(async move { live.work(&work, stop).await }));
            w.pass(40).await;
            for _ in 0..2 {
                w.process().1.work(&Work::Sweep {}, w.stop()).await.unwrap();
                w.drain().await;
                for client in &mut clients {
                    client.read(&w);
                    if !client.is_open(&w) {
                        client.connect(&w).await;
                    }
                }
                w.drain().await;
            }
            let (before, posts) = (w.store.items(), w.sockets.posts());
            ice.thaw();
            w.pass(60).await;
            assert!(zombie.is_finished());
            assert_eq!(w.store.items(), before, "post {post}: it wrote nothing");
            assert_eq!(w.sockets.posts(), posts, "post {post}: it posted nothing");
            settle(&w, &mut clients).await;
        }
    }
}

/// What a process is frozen in: while it is, nothing of it runs.
#[derive(Clone, Default)]
struct Ice(Arc<Mutex<(bool, Option<std::task::Waker>)>>);

impl Ice {
    fn freeze(&self) {
        self.0.lock().unwrap().0 = true;
    }

    fn thaw(&self) {
        let mut ice = self.0.lock().unwrap();
        ice.0 = false;
        if let Some(waker) = ice.1.take() {
            waker.wake();
        }
    }

    async fn around<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(move |cx| {
            let mut ice = self.0.lock().unwrap();
            if ice.0 {
                ice.1 = Some(cx.waker().clone());
                return std::task::Poll::Pending;
            }
            drop(ice);
            work.as_mut().poll(cx)
        })
        .await
    }
}
