use std::sync::Mutex;

use async_trait::async_trait;
use tidewheel_engine::{PartitionId, Settings};
use tidewheel_store::{Env, Memory};

use super::*;
use crate::object::tests::One;

/// Positions that were left, and an invocation's clock.
#[derive(Default)]
struct Left(Mutex<Vec<Object>>);

#[async_trait]
impl Positions for Left {
    async fn leave(&self, object: &Object) -> Result<(), String> {
        self.0.lock().unwrap().push(object.clone());
        Ok(())
    }
}

struct World {
    engine: Engine,
    left: Arc<Left>,
}

const FAR: i64 = i64::MAX;

impl World {
    fn new() -> Self {
        let env = Env::system();
        let engine = Engine::new(Arc::new(Memory::new()), env, Settings::default());
        Self { engine, left: Arc::default() }
    }

    /// An invocation's process, over a bucket with this object.
    fn process(&self, bucket: One, rules: &str) -> Ingest {
        let left = Arc::clone(&self.left) as Arc<dyn Positions>;
        let routes = Routes::parse(rules).unwrap();
        Ingest::new(self.engine.clone(), routes, Arc::new(bucket), Some(left))
    }

    async fn take(
        &self,
        bytes: impl Into<bytes::Bytes>,
        event: &Value,
    ) -> Result<Value, IngestError> {
        self.process(One::new(bytes), "").take(&event.to_string(), FAR).await
    }

    /// The payloads of a partition, in order.
    async fn rows(&self, stream: &str, partition: &str) -> Vec<String> {
        let Some(info) = self.engine.stream(stream).await.unwrap() else { return Vec::new() };
        let id = PartitionId::of(&info.id, partition);
        let Some(extent) = self.engine.extent(&id).await.unwrap() else { return Vec::new() };
        let mut rows = Vec::new();
        while (rows.len() as u64) < extent.tail {
            let batch =
                self.engine.read(&id, rows.len() as u64, usize::MAX, usize::MAX).await.unwrap();
            assert!(!batch.records.is_empty());
            rows.extend(
                batch.records.iter().map(|r| String::from_utf8_lossy(&r.payload).into_owned()),
            );
        }
        rows
    }
}

fn sqs(messages: &[(&str, &str)]) -> Value {
    let records = messages.iter().map(|(id, body)| {
        json!({"messageId": id, "receiptHandle": "r", "body": body, "attributes": {}, "messageAttributes": {},
               "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:x:1:orders", "awsRegion": "x"})
    });
    json!({"Records": records.collect::<Vec<_>>()})
}

fn kinesis(records: &[(&str, &str)]) -> Value {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let records = records.iter().map(|(number, data)| {
        json!({"eventID": format!("shard-0:{number}"), "eventSource": "aws:kinesis", "eventVersion": "1.0",
               "eventName": "aws:kinesis:record", "invokeIdentityArn": "a", "awsRegion": "x",
               "eventSourceARN": "arn:aws:kinesis:x:1:stream/clicks",
               "kinesis": {"kinesisSchemaVersion": "1.0", "partitionKey": "k", "sequenceNumber": number,
                           "data": STANDARD.encode(data), "approximateArrivalTimestamp": 1.5}})
    });
    json!({"Records": records.collect::<Vec<_>>()})
}

fn created(key: &str) -> Value {
    json!({"id": "e", "source": "aws.s3", "detail-type": "Object Created",
           "detail": {"bucket": {"name": "landing"}, "object": {"key": key, "etag": "tag"}}})
}

fn failures(answer: &Value) -> Vec<&str> {
    let failures = answer["batchItemFailures"].as_array().unwrap();
    failures.iter().map(|f| f["itemIdentifier"].as_str().unwrap()).collect()
}

/// A payload over the engine's limit.
fn oversized() -> String {
    format!("\"{}\"", "x".repeat(tidewheel_engine::limits::PAYLOAD_BYTES))
}

#[tokio::test]
async fn a_batch_that_is_delivered_again_is_stored_once() {
    let world = World::new();
    let event = sqs(&[("m1", "{\"n\": 1.0}"), ("m2", "two")]);
    for _ in 0..3 {
        let answer = world.take("", &event).await.unwrap();
        assert_eq!(failures(&answer), Vec::<&str>::new());
    }
    assert_eq!(world.rows("orders", "Default").await, ["{\"n\": 1.0}", "\"two\""]);
}

#[tokio::test]
async fn a_message_that_can_never_be_stored_fails_alone() {
    let world = World::new();
    let large = oversized();
    let event = sqs(&[("m1", "1"), ("poison", &large), ("m3", "3")]);
    let answer = world.take("", &event).await.unwrap();
    assert_eq!(failures(&answer), ["poison"]);
    assert_eq!(world.rows("orders", "Default").await, ["1", "3"]);
}

#[tokio::test]
async fn a_record_that_can_never_be_stored_does_not_hold_up_its_shard() {
    let world = World::new();
    let large = oversized();
    let answer = world.take("", &kinesis(&[("1", "1"), ("2", &large), ("3", "3")])).await.unwrap();
    assert_eq!(failures(&answer), Vec::<&str>::new());
    assert_eq!(world.rows("clicks", "Default").await, ["1", "3"]);
    let told = world.rows("clicks-rejected", "Default").await;
    let told: Value = serde_json::from_str(&told[0]).unwrap();
    assert!(told["error"].as_str().unwrap().contains("bytes in one payload"), "{told}");
    assert_eq!(told["source"], "arn:aws:kinesis:x:1:stream/clicks");
}

#[tokio::test]
async fn a_shard_goes_on_at_the_first_record_that_failed_for_now() {
    let world = World::new();
    world.engine.pause_push(true).await.unwrap();
    let event = kinesis(&[("7", "1"), ("8", "2")]);
    let answer = world.take("", &event).await.unwrap();
    assert_eq!(failures(&answer), ["7"]);
    world.engine.pause_push(false).await.unwrap();
    assert_eq!(failures(&world.take("", &event).await.unwrap()), Vec::<&str>::new());
    assert_eq!(world.rows("clicks", "Default").await, ["1", "2"]);
}

#[tokio::test]
async fn routes_say_stream_and_partition() {
    let world = World::new();
    let rules =
        r#"[{"source": "arn:aws:sqs:*:orders", "stream": "sales", "partition": "/region"}]"#;
    let event = sqs(&[("m1", r#"{"region":"eu"}"#), ("m2", r#"{"region":"us"}"#), ("m3", "{}")]);
    let process = world.process(One::new(""), rules);
    process.take(&event.to_string(), FAR).await.unwrap();
    assert_eq!(world.rows("sales", "eu").await, [r#"{"region":"eu"}"#]);
    assert_eq!(world.rows("sales", "us").await, [r#"{"region":"us"}"#]);
    assert_eq!(world.rows("sales", "Default").await, ["{}"]);
}

#[tokio::test]
async fn an_object_becomes_rows_once_and_its_bad_lines_are_told() {
    let world = World::new();
    let text = "{\"n\":1}\nbad\n{\"n\":2}\n";
    for _ in 0..2 {
        world.take(text, &created("a.jsonl")).await.unwrap();
    }
    assert_eq!(world.rows("landing", "Default").await, ["{\"n\":1}", "{\"n\":2}"]);
    let told = world.rows("landing-rejected", "Default").await;
    assert_eq!(told.len(), 1);
    let told: Value = serde_json::from_str(&told[0]).unwrap();
    assert_eq!((&told["row"], &told["content"]), (&json!(1), &json!("bad")));
    assert_eq!(told["source"], "arn:aws:s3:::landing/a.jsonl");
}

#[tokio::test]
async fn an_object_named_in_a_message_is_read_and_an_unreadable_one_is_told_of_once() {
    let world = World::new();
    let notification = created("a.parquet").to_string();
    for _ in 0..2 {
        let answer = world.take("no parquet", &sqs(&[("m", &notification)])).await.unwrap();
        assert_eq!(failures(&answer), Vec::<&str>::new());
    }
    let told = world.rows("landing-rejected", "Default").await;
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("no Parquet file"), "{}", told[0]);
}

#[tokio::test]
async fn a_large_object_goes_on_where_the_time_was_over() {
    let world = World::new();
    let text: String = (0..5000).map(|n| format!("{n}\n")).collect();
    let over = world.engine.env().now_us() + MARGIN_US;
    let process = world.process(One::new(text.clone()), "");
    process.take(&created("a.jsonl").to_string(), over).await.unwrap();
    // No time at all: nothing is read, and all of it is left.
    let left = std::mem::take(&mut *world.left.0.lock().unwrap());
    assert_eq!(left.iter().map(|o| o.position.row).collect::<Vec<_>>(), [0]);
    assert!(world.rows("landing", "Default").await.is_empty());

    // Time that is over after the first chunk: the position is behind it.
    let soon = world.engine.env().now_us() + MARGIN_US + 1000;
    process.take(&sqs(&[("m", &left[0].to_message())]).to_string(), soon).await.unwrap();
    let left = std::mem::take(&mut *world.left.0.lock().unwrap());
    let read = world.rows("landing", "Default").await.len() as u64;
    assert_eq!(left.iter().map(|o| o.position.row).collect::<Vec<_>>(), [read]);
    assert!(read < 5000);

    // Both the position and a late copy of the first event are delivered: no row comes twice.
    process.take(&sqs(&[("m", &left[0].to_message())]).to_string(), FAR).await.unwrap();
    process.take(&created("a.jsonl").to_string(), FAR).await.unwrap();
    let expected: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
    assert_eq!(world.rows("landing", "Default").await, expected);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_now_is_delivered_again() {
    let world = World::new();
    let mut bucket = One::new("1\n2\n");
    bucket.fail_from = 0;
    let failed = world.process(bucket, "").take(&created("a.jsonl").to_string(), FAR).await;
    assert!(matches!(&failed, Err(IngestError::Failed { why, .. }) if why == "busy"), "{failed:?}");
    let mut bucket = One::new("1\n2\n");
    bucket.fail_from = 0;
    let event = sqs(&[("m1", &created("a.jsonl").to_string()), ("m2", "2")]);
    let answer = world.process(bucket, "").take(&event.to_string(), FAR).await.unwrap();
    assert_eq!(failures(&answer), ["m1"]);
    assert_eq!(world.rows("orders", "Default").await, ["2"]);
}
