//! From an event to a call of the gateway.

use tidewheel_engine::{Error, live::ready_partition};
use tidewheel_gateway::live::{Live, StopAt};

use crate::event::{Answer, Changes, Event, Failure};

/// The function.
pub(crate) struct Function {
    live: Live,
}

impl Function {
    pub(crate) fn new(live: Live) -> Self {
        Self { live }
    }

    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    /// Does what an event asks for.
    ///
    /// # Errors
    /// Those of the store: the event is to come again. Of a batch of changes the answer says which.
    pub(crate) async fn answer(&self, event: Event, stop: StopAt) -> Result<Answer, Error> {
        match event {
            Event::Work(work) => {
                tracing::debug!(?work, "work");
                self.live.work(&work, stop).await?;
                Ok(Answer::default())
            }
            Event::Changes(changes) => Ok(self.changes(&changes).await),
        }
    }

    /// Asks for what the changes ask for; delivers nothing itself, so that no partition waits for another's clients.
    async fn changes(&self, changes: &Changes) -> Answer {
        let mut answer = Answer::default();
        for change in &changes.records {
            // The filter lets no other records through; a mapping without it costs invocations and changes nothing.
            let Some(partition) = ready_partition(&change.key()) else { continue };
            if let Err(error) = self.live.changed(&partition).await {
                tracing::warn!(%error, %partition, "a change comes again");
                let item_identifier = change.sequence_number().to_owned();
                answer.batch_item_failures.push(Failure { item_identifier });
                // Whatever lies behind the first failure comes again as well.
                break;
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use bytes::Bytes;
    use serde_json::{Value, json};
    use tidewheel_engine::{Engine, PartitionId, PushItem, Settings};
    use tidewheel_gateway::live::{Address, Connect, Invoke, NotInvoked, Post, Posted, Work};
    use tidewheel_store::{Env, Memory, Store, faulty};

    use super::*;

    const START_US: i64 = 1_767_225_600_000_000;
    const STOP: StopAt = StopAt(START_US + 50_000_000);

    #[derive(Clone, Debug, Default)]
    struct Outside {
        asked: Arc<Mutex<Vec<Work>>>,
        posted: Arc<Mutex<Vec<Value>>>,
    }

    #[async_trait]
    impl Invoke for Outside {
        async fn invoke(&self, work: &Work) -> Result<(), NotInvoked> {
            self.asked.lock().unwrap().push(work.clone());
            Ok(())
        }
    }

    #[async_trait]
    impl Post for Outside {
        async fn post(&self, to: &Address, message: Bytes) -> Posted {
            assert_eq!(to.connection, "c");
            self.posted.lock().unwrap().push(serde_json::from_slice(&message).unwrap());
            Posted::Delivered
        }

        async fn close(&self, _: &Address) -> bool {
            true
        }
    }

    struct Fixture {
        store: Memory,
        outside: Outside,
        engine: Engine,
        function: Function,
    }

    fn function(store: Arc<dyn Store>, outside: &Outside) -> (Engine, Function) {
        let env = Env::simulated(1, START_US, 0);
        let engine = Engine::new(store, env, Settings::default());
        let (post, invoke) = (Arc::new(outside.clone()), Arc::new(outside.clone()));
        (engine.clone(), Function::new(Live::new(engine, post, invoke)))
    }

    impl Fixture {
        async fn new() -> Self {
            let (store, outside) = (Memory::new(), Outside::default());
            let (engine, function) = function(Arc::new(store.clone()), &outside);
            let fixture = Self { store, outside, engine, function };
            fixture.push(0).await;
            let query = vec![("stream".to_owned(), "s".to_owned()), ("offset".into(), "0".into())];
            let request = Connect { connection: "c".into(), query, ..Connect::default() };
            fixture.function.live().connect(request).await.unwrap();
            fixture
        }

        async fn push(&self, n: u64) {
            let payload = n.to_string().into();
            let item = PushItem { stream: "s".into(), payload, ..PushItem::default() };
            self.engine.push(vec![item]).await;
        }

        async fn answer(&self, event: Value) -> Value {
            let event = serde_json::from_value(event).unwrap();
            serde_json::to_value(self.function.answer(event, STOP).await.unwrap()).unwrap()
        }

        fn posted(&self) -> Vec<Value> {
            std::mem::take(&mut *self.outside.posted.lock().unwrap())
        }

        fn asked(&self) -> Vec<Work> {
            std::mem::take(&mut *self.outside.asked.lock().unwrap())
        }

        async fn partition(&self) -> PartitionId {
            let stream = self.engine.stream("s").await.unwrap().unwrap();
            PartitionId::of(&stream.id, "Default")
        }
    }

    /// A record as the table's stream brings it, of an item of the store.
    fn record(key: &tidewheel_store::Key, number: u64) -> Value {
        json!({
            "eventID": "1", "eventName": "INSERT", "eventSource": "aws:dynamodb",
            "dynamodb": {
                "Keys": {"pk": {"S": key.pk}, "sk": {"S": key.sk}},
                "SequenceNumber": number.to_string(), "SizeBytes": 26,
                "StreamViewType": "KEYS_ONLY",
            },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_greeted_and_rows_are_delivered() {
        let f = Fixture::new().await;
        let nothing = json!({"batchItemFailures": []});
        assert_eq!(f.answer(json!({"greet": {"connection": "c"}})).await, nothing);
        let posted = f.posted();
        assert_eq!((&posted[0]["streamcast"], &posted[1][0]), (&json!(4), &json!(1)));
        assert_eq!(f.answer(json!({"greet": {"connection": "c"}})).await, nothing);
        assert_eq!(f.posted(), [] as [Value; 0], "once");
        f.push(1).await;
        let partition = f.partition().await.to_string();
        let deliver = json!({"deliver": {"partition": partition, "stream": "s"}});
        assert_eq!(f.answer(deliver.clone()).await, nothing);
        assert_eq!(f.posted()[0][2], 1);
        assert_eq!(f.answer(deliver).await, nothing);
        assert_eq!(f.posted(), [] as [Value; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_asks_for_a_delivery_unless_there_is_nothing_to_do() {
        let f = Fixture::new().await;
        f.answer(json!({"greet": {"connection": "c"}})).await;
        f.asked();
        f.push(1).await;
        let items = f.store.items();
        let ready = items.keys().find(|key| ready_partition(key).is_some()).unwrap();
        let head = items.keys().find(|key| key.sk == "head").unwrap();
        let batch = json!({"Records": [record(head, 1), record(ready, 2)]});
        assert_eq!(f.answer(batch.clone()).await, json!({"batchItemFailures": []}));
        assert_eq!(f.asked(), [Work::deliver(&f.partition().await)]);
        f.answer(json!({"deliver": {"partition": ready.sk}})).await;
        f.answer(batch.clone()).await;
        assert_eq!(f.asked(), [], "the doorbell was first");
        let env = Env::simulated(3, START_US, 0);
        let plan = faulty::Plan { refuse_read: 1.0, ..faulty::Plan::none() };
        let broken = faulty::Faulty::new(Arc::new(f.store.clone()), plan, env);
        let (_, broken) = function(Arc::new(broken), &f.outside);
        let event = serde_json::from_value(batch).unwrap();
        let answer = broken.answer(event, STOP).await.unwrap();
        assert_eq!(answer.batch_item_failures, [Failure { item_identifier: "2".into() }]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_asks_for_what_was_left() {
        let f = Fixture::new().await;
        f.asked();
        f.answer(json!({"sweep": {}})).await;
        let greet = Work::Greet { connection: "c".into(), subscription: String::new() };
        assert_eq!(f.asked(), [greet]);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_nobody_knows_is_an_error() {
        assert!(serde_json::from_value::<Event>(json!({"sing": {}})).is_err());
        let f = Fixture::new().await;
        let event = serde_json::from_value(json!({"deliver": {"partition": "x"}})).unwrap();
        assert!(matches!(f.function.answer(event, STOP).await, Err(Error::Invalid(_))));
    }
}
