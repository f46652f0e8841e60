//! A fresh engine on a fresh store, and short forms of requests.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::*;
use tidewheel_store::{Env, Store};

use crate::store::TestStore;

/// 2026-01-01 00:00 UTC, µs.
pub(crate) const START_US: i64 = 1_767_225_600_000_000;

pub(crate) struct Fixture {
    pub(crate) store: TestStore,
    pub(crate) env: Env,
    pub(crate) engine: Engine,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let store = TestStore::new();
        let env = Env::simulated(7, START_US, 0);
        let engine = Self::another(&store, &env);
        Self { store, env, engine }
    }

    /// Another process over the same store: it remembers nothing.
    pub(crate) fn another(store: &TestStore, env: &Env) -> Engine {
        Engine::new(Arc::new(store.clone()) as Arc<dyn Store>, env.clone(), Settings::default())
    }

    pub(crate) fn restart(&self) -> Engine {
        Self::another(&self.store, &self.env)
    }

    pub(crate) async fn pass(&self, seconds: f64) {
        self.env.sleep(Duration::from_secs_f64(seconds)).await;
    }

    pub(crate) async fn configure(&self, stream: &str, options: serde_json::Value) {
        let serde_json::Value::Object(options) = options else { panic!("options are an object") };
        let configure = Configure { options, ..Configure::default() };
        self.engine.configure(stream, configure).await.unwrap();
    }

    pub(crate) async fn push(&self, partition: &str, payloads: &[&str]) -> Vec<Pushed> {
        self.engine.push(payloads.iter().map(|p| item("s", partition, p)).collect()).await
    }

    pub(crate) async fn pop(&self, group: &str, batch: usize) -> Popped {
        self.engine.pop(pop_of("s", group, batch)).await.unwrap()
    }

    pub(crate) async fn ack(
        &self,
        group: &str,
        popped: &Popped,
        verdicts: &[Verdict],
    ) -> Vec<Acked> {
        let acks =
            popped.messages.iter().zip(verdicts).map(|(m, &v)| ack_of(m, v, popped)).collect();
        self.engine.ack(Some(group), acks).await.unwrap()
    }

    pub(crate) async fn ack_all(&self, group: &str, popped: &Popped) {
        let verdicts = vec![Verdict::Completed; popped.messages.len()];
        for acked in self.ack(group, popped, &verdicts).await {
            assert_eq!(acked.error, None);
        }
    }

    pub(crate) async fn partition_id(&self, stream: &str, partition: &str) -> PartitionId {
        let stream = self.engine.stream(stream).await.unwrap().unwrap();
        PartitionId::of(&stream.id, partition)
    }

    pub(crate) async fn payloads(&self, stream: &str, partition: &str) -> Vec<String> {
        let id = self.partition_id(stream, partition).await;
        let read = match self.engine.read(&id, 0, 100_000, usize::MAX).await {
            Ok(read) => read,
            Err(Error::PartitionNotFound) => return Vec::new(),
            Err(e) => panic!("{e}"),
        };
        assert!(read.records.iter().map(|r| r.offset).eq(read.extent.floor..read.extent.tail));
        read.records.iter().map(|r| String::from_utf8_lossy(&r.payload).into_owned()).collect()
    }
}

pub(crate) fn item(stream: &str, partition: &str, payload: &str) -> PushItem {
    PushItem {
        stream: stream.into(),
        partition: partition.into(),
        payload: payload.to_owned().into(),
        ..PushItem::default()
    }
}

pub(crate) fn with_id(mut item: PushItem, id: &str) -> PushItem {
    item.transaction_id = Some(id.to_owned());
    item
}

pub(crate) fn pop_of(stream: &str, group: &str, batch: usize) -> Pop {
    Pop {
        target: PopTarget::Stream { stream: stream.into() },
        group: Some(group.into()),
        batch,
        partitions: 1,
        wait: None,
        lease_seconds: None,
        auto_ack: false,
        mode: SubscriptionMode::All,
        conflation: None,
    }
}

pub(crate) fn ack_of(message: &Message, verdict: Verdict, popped: &Popped) -> Ack {
    Ack {
        transaction_id: message.record.transaction_id.clone(),
        partition_id: message.partition.id.to_string(),
        verdict,
        lease_id: Some(popped.lease_id.clone()),
        error: Some("boom".into()),
    }
}

pub(crate) fn payloads(popped: &Popped) -> Vec<String> {
    popped
        .messages
        .iter()
        .map(|m| String::from_utf8_lossy(&m.record.payload).into_owned())
        .collect()
}

pub(crate) fn offset(pushed: &Pushed) -> u64 {
    match pushed {
        Pushed::Queued { offset, .. } => *offset,
        other => panic!("not queued: {other:?}"),
    }
}
