//! Posts that do not go well.

use std::time::Duration;

use serde_json::json;
use tidewheel_gateway::live::Posted;

use crate::world::{Act, Client, Kind, World, settle};

/// Clients in one cohort, all of which have everything.
async fn cohort(w: &World, kinds: &[Kind]) -> Vec<Client> {
    w.push(&[json!(0)]).await;
    let mut clients: Vec<Client> = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        let mut client = Client::new(&format!("c{n}"), *kind, 0);
        client.connect(w).await;
        clients.push(client);
    }
    w.drain().await;
    clients
}

const BOTH: [Kind; 2] = [Kind::Native, Kind::Streamcast];

#[tokio::test(start_paused = true)]
async fn who_is_gone_is_forgotten_and_the_others_get_everything() {
    let w = World::new(1);
    let mut clients = cohort(&w, &[Kind::Native, Kind::Streamcast, Kind::Streamcast]).await;
    w.sockets.cut(&clients[1].connection());
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert_eq!(w.items("wp#").len(), 3, "the cohort and two");
    assert_eq!(w.items("wc#").len(), 4);
    clients[0].read(&w);
    clients[2].read(&w);
    assert_eq!((clients[0].next, clients[2].next), (2, 2));
    w.sockets.cut(&clients[0].connection());
    w.sockets.cut(&clients[2].connection());
    w.push(&[json!(2)]).await;
    w.drain().await;
    assert_eq!(w.items("w"), [] as [String; 0], "and the cohort is dissolved");
    settle(&w, &mut clients).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_is_dropped_and_holds_up_nobody() {
    let w = World::new(2);
    let mut clients = cohort(&w, &BOTH).await;
    let slow = clients[0].connection();
    let is_slow = slow.clone();
    w.sockets.script(
        move |_, connection| {
            if connection == is_slow { Act::Answer(Posted::Slow) } else { Act::Deliver }
        },
    );
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert!(!w.sockets.is_open(&slow));
    clients[1].read(&w);
    assert_eq!(clients[1].next, 2);
    settle(&w, &mut clients).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_account_is_waited_for_and_nobody_pays_for_it() {
    let w = World::new(3);
    let mut clients = cohort(&w, &BOTH).await;
    w.sockets.script(|n, _| if n <= 12 { Act::Answer(Posted::Throttled) } else { Act::Deliver });
    w.push(&[json!(1), json!(2)]).await;
    w.drain().await;
    for client in &mut clients {
        assert!(client.is_open(&w));
        client.read(&w);
        assert_eq!(client.next, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_stays_throttled_delays_everybody_and_loses_nothing() {
    let w = World::new(4);
    let mut clients = cohort(&w, &BOTH).await;
    w.sockets.script(|_, _| Act::Answer(Posted::Throttled));
    w.push(&[json!(1)]).await;
    let work = w.take_asked().unwrap();
    w.process().1.work(&work, w.stop()).await.unwrap();
    assert_eq!(w.take_asked(), Some(work), "it goes on in another invocation");
    settle(&w, &mut clients).await;
}

#[tokio::test(start_paused = true)]
async fn a_doubtful_post_is_repeated_to_who_can_tell_and_closes_who_cannot() {
    for act in [Act::LoseAnswer, Act::Answer(Posted::Unknown), Act::Late(Duration::from_secs(60))] {
        let w = World::new(5);
        let mut clients = cohort(&w, &BOTH).await;
        let mut met = std::collections::BTreeSet::new();
        w.sockets.script(
            move |_, connection| {
                if met.insert(connection.to_owned()) { act } else { Act::Deliver }
            },
        );
        w.push(&[json!(1)]).await;
        w.drain().await;
        assert!(clients[0].is_open(&w), "{act:?}");
        assert!(!clients[1].is_open(&w), "{act:?}");
        clients[0].read(&w);
        assert_eq!(clients[0].next, 2, "{act:?}");
        settle(&w, &mut clients).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_of_whom_nothing_is_ever_known_is_given_up() {
    let w = World::new(6);
    let mut clients = cohort(&w, &BOTH).await;
    w.sockets.script(|_, _| Act::Answer(Posted::Unknown));
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert!(clients.iter().all(|c| !c.is_open(&w)));
    settle(&w, &mut clients).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_there_yet_is_waited_for() {
    let w = World::new(7);
    w.push(&[json!(0)]).await;
    w.sockets.script(|n, _| if n <= 5 { Act::Answer(Posted::Gone) } else { Act::Deliver });
    let mut client = Client::new("c", Kind::Streamcast, 0);
    client.connect(&w).await;
    w.drain().await;
    client.read(&w);
    assert_eq!(client.next, 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_cannot_be_closed_now_is_closed_later() {
    let w = World::new(8);
    let mut clients = cohort(&w, &BOTH).await;
    let slow = clients[1].connection();
    w.sockets.script(|_, connection| {
        if connection.starts_with("c1") { Act::Answer(Posted::Slow) } else { Act::Deliver }
    });
    w.sockets.close_works(false);
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert!(w.sockets.is_open(&slow));
    assert_eq!(w.items("wf#").len(), 1);
    w.recover().await;
    assert!(w.sockets.is_open(&slow));
    w.sockets.close_works(true);
    w.recover().await;
    assert!(!w.sockets.is_open(&slow));
    settle(&w, &mut clients).await;
}
