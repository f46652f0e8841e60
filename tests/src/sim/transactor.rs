//! Workers that move records from one stream to another: acknowledgement and push in one transaction.

use std::sync::Arc;

use tidewheel_engine::{Ack, Error, Message, PushItem, SubscriptionMode, TransactionOp, Verdict};

use super::{
    History, World,
    consumer::{pop, pop_of, think},
    history::{Answer, By},
    process::Handle,
    world::{Chance, FROM, TO},
};

pub(crate) const GROUP: &str = "movers";

/// The tag of the record that a moved one came from.
pub(crate) fn origin(payload: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Moved {
        moved: u64,
    }
    serde_json::from_slice::<Moved>(payload).ok().map(|m| m.moved)
}

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        let mut request = pop_of(FROM, GROUP, SubscriptionMode::All, &mut chance);
        request.batch = 1 + chance.below(20) as usize;
        let (popped, parts) = match pop(&world, &process, request, GROUP).await {
            Ok(found) => found,
            Err(e) => {
                if !e.is_transient() {
                    world.unexpected("pop of a mover", &e);
                }
                tokio::time::sleep(chance.time(10, 300)).await;
                continue;
            }
        };
        think(&world, &mut chance).await;
        for (delivery, messages) in parts {
            transact(&world, &process, &mut chance, &popped.lease_id, delivery, &messages).await;
        }
        tokio::time::sleep(chance.time(5, 100)).await;
    }
}

async fn transact(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    lease: &str,
    delivery: usize,
    messages: &[Message],
) {
    // The lease is named by each acknowledgement or by the whole transaction.
    let by_ack = chance.one_in(2);
    let mut ops = Vec::new();
    let mut items = Vec::new();
    for message in messages {
        let ack = Ack {
            transaction_id: message.record.transaction_id.clone(),
            partition_id: message.partition.id.to_string(),
            verdict: Verdict::Completed,
            lease_id: by_ack.then(|| lease.to_owned()),
            error: None,
        };
        ops.push(TransactionOp::Ack { group: Some(GROUP.to_owned()), ack });
        let from = History::tag_of(&message.record.payload);
        let tag = world.history.lock().fresh_tag();
        items.push(PushItem {
            stream: TO.to_owned(),
            partition: format!("p{}", from % 3),
            payload: format!("{{\"tag\":{tag},\"moved\":{from}}}").into(),
            ..PushItem::default()
        });
    }
    ops.insert(chance.below(ops.len() as u64 + 1) as usize, TransactionOp::Push(items));
    let leases = if by_ack { Vec::new() } else { vec![lease.to_owned()] };
    let verdicts: Vec<_> = messages.iter().map(|m| (m.record.offset, Verdict::Completed)).collect();
    for _ in 0..1 + chance.below(3) {
        let now = world.now();
        let noted = world.history.lock().settling(delivery, By::Transaction, verdicts.clone(), now);
        let answer = process.engine.transact(ops.clone(), leases.clone()).await;
        let (answer, again) = match answer {
            Ok(Ok(_)) => {
                (Answer::Done { at: world.now(), dead: Default::default(), noop: false }, false)
            }
            Ok(Err(_)) => (Answer::Refused, false),
            Err(Error::Unknown(_)) => (Answer::Doubtful, true),
            Err(e) if e.is_transient() => (Answer::Refused, true),
            Err(e) => {
                world.unexpected("transaction", &e);
                (Answer::Refused, false)
            }
        };
        world.history.lock().settled(noted, answer);
        if !again {
            return;
        }
    }
}
