//! What an event brings: messages of a source, or objects to read.
//!
//! Payloads are kept as they came, byte for byte. An object may be named by S3 itself, by EventBridge, or inside a message
//! of SQS or SNS that S3 or EventBridge sent there; a position that this function left for itself is a message too.

use aws_lambda_events::{kinesis::KinesisEvent, s3::S3Event, sns::SnsEvent, sqs::SqsEvent};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One message, record or event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// The source's ARN, or what stands for it.
    pub(crate) source: String,
    /// The source's own name.
    pub(crate) name: String,
    /// What nobody else of this source has, and this one has again when it is delivered again.
    pub(crate) id: String,
    /// The source's own key.
    pub(crate) key: Option<String>,
    /// As it came.
    pub(crate) payload: Bytes,
    /// By what it is reported when it fails alone.
    pub(crate) handle: String,
}

/// An object to read, from a position on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Object {
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Its entity tag, by which it is asked for: another object under the same key is another event's.
    pub(crate) etag: String,
    pub(crate) version: Option<String>,
    #[serde(default)]
    pub(crate) position: Position,
}

/// How far an object has been read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Bytes of text, or row groups of Parquet.
    pub(crate) at: u64,
    /// Rows before it, bad ones counted.
    pub(crate) row: u64,
    /// The names of the columns of CSV.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) header: Vec<String>,
}

/// What an event is.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// Messages of a queue: each may fail alone.
    Queue(Vec<Arrival>),
    /// Records of a shard, in order: whatever fails holds up what is behind it.
    Shard(Vec<Arrival>),
    /// Messages that fail together.
    Messages(Vec<Arrival>),
    /// New objects.
    Objects(Vec<Object>),
}

/// Why an event says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnknownEvent {
    /// It is of none of the kinds.
    #[error("the event is none of SQS, SNS, EventBridge, Kinesis or S3")]
    Kind,
    /// It is of a kind and does not look like it.
    #[error("the event of {kind} is malformed: {why}")]
    Malformed { kind: &'static str, why: serde_json::Error },
}

#[derive(Deserialize)]
struct Outline {
    #[serde(rename = "Records", default)]
    records: Vec<RecordOutline>,
    #[serde(rename = "detail-type")]
    detail_type: Option<String>,
    source: Option<String>,
    id: Option<String>,
}

#[derive(Deserialize)]
struct RecordOutline {
    #[serde(rename = "eventSource", alias = "EventSource")]
    source: Option<String>,
}

/// What a position looks like in a message.
#[derive(Serialize, Deserialize)]
struct Continue {
    #[serde(rename = "tidewheelContinue")]
    object: Object,
}

impl Object {
    /// The message that makes another invocation go on.
    pub(crate) fn to_message(&self) -> String {
        let message = serde_json::to_string(&Continue { object: self.clone() });
        // Strings and numbers always become JSON.
        message.unwrap_or_default()
    }

    /// As a source of routes.
    pub(crate) fn arn(&self) -> String {
        format!("arn:aws:s3:::{}/{}", self.bucket, self.key)
    }
}

/// Reads an event.
pub(crate) fn read(text: &str) -> Result<Event, UnknownEvent> {
    let outline: Outline = serde_json::from_str(text).map_err(|_| UnknownEvent::Kind)?;
    if let (Some(kind), Some(source)) = (outline.detail_type, outline.source) {
        if let Some(objects) = objects_in(text) {
            return Ok(Event::Objects(objects));
        }
        let id = outline.id.ok_or(UnknownEvent::Kind)?;
        return Ok(Event::Messages(vec![Arrival {
            name: source.clone(),
            source: format!("events:{source}/{kind}"),
            handle: id.clone(),
            id: format!("events:{id}"),
            key: None,
            payload: Bytes::copy_from_slice(text.as_bytes()),
        }]));
    }
    let source = outline.records.first().and_then(|r| r.source.clone()).unwrap_or_default();
    match source.as_str() {
        "aws:sqs" => queue(text),
        "aws:kinesis" => shard(text),
        "aws:sns" => topic(text),
        "aws:s3" => Ok(Event::Objects(objects_in(text).ok_or(UnknownEvent::Kind)?)),
        _ => Err(UnknownEvent::Kind),
    }
}

fn malformed(kind: &'static str) -> impl Fn(serde_json::Error) -> UnknownEvent {
    move |why| UnknownEvent::Malformed { kind, why }
}

/// The last part of an ARN.
fn name_in(arn: &str) -> String {
    arn.rsplit([':', '/']).next().unwrap_or_default().to_owned()
}

fn queue(text: &str) -> Result<Event, UnknownEvent> {
    let event: SqsEvent = serde_json::from_str(text).map_err(malformed("SQS"))?;
    let arrivals = event.records.into_iter().map(|message| {
        let source = message.event_source_arn.unwrap_or_default();
        let id = message.message_id.unwrap_or_default();
        Arrival {
            name: name_in(&source),
            id: format!("sqs:{id}"),
            key: message.attributes.get("MessageGroupId").cloned(),
            payload: Bytes::from(message.body.unwrap_or_default()),
            handle: id,
            source,
        }
    });
    Ok(Event::Queue(arrivals.collect()))
}

fn topic(text: &str) -> Result<Event, UnknownEvent> {
    let event: SnsEvent = serde_json::from_str(text).map_err(malformed("SNS"))?;
    let arrivals = event.records.into_iter().map(|record| {
        let message = record.sns;
        Arrival {
            name: name_in(&message.topic_arn),
            source: message.topic_arn,
            handle: message.message_id.clone(),
            id: format!("sns:{}", message.message_id),
            key: None,
            payload: Bytes::from(message.message),
        }
    });
    Ok(Event::Messages(arrivals.collect()))
}

fn shard(text: &str) -> Result<Event, UnknownEvent> {
    let event: KinesisEvent = serde_json::from_str(text).map_err(malformed("Kinesis"))?;
    let arrivals = event.records.into_iter().map(|record| {
        let source = record.event_source_arn.unwrap_or_default();
        let number = record.kinesis.sequence_number;
        Arrival {
            name: name_in(&source),
            // A sequence number is its shard's own.
            id: format!("kinesis:{}", record.event_id.unwrap_or_else(|| number.clone())),
            key: Some(record.kinesis.partition_key),
            payload: Bytes::from(record.kinesis.data.0),
            handle: number,
            source,
        }
    });
    Ok(Event::Shard(arrivals.collect()))
}

/// The objects that a text names, if that is what it is for. A test message of S3 names none.
pub(crate) fn objects_in(text: &str) -> Option<Vec<Object>> {
    if let Ok(position) = serde_json::from_str::<Continue>(text) {
        return Some(vec![position.object]);
    }
    if let Ok(event) = serde_json::from_str::<ObjectCreated>(text)
        && event.source == "aws.s3"
        && event.detail_type == "Object Created"
    {
        let Detail { bucket, object } = event.detail;
        let etag = object.etag.unwrap_or_default();
        let position = Position::default();
        return Some(vec![Object {
            bucket: bucket.name,
            key: object.key,
            etag,
            version: object.version,
            position,
        }]);
    }
    let test: Result<TestEvent, _> = serde_json::from_str(text);
    if test.is_ok_and(|test| test.event == "s3:TestEvent") {
        return Some(Vec::new());
    }
    let outline: Outline = serde_json::from_str(text).ok()?;
    if outline.records.first()?.source.as_deref() != Some("aws:s3") {
        return None;
    }
    let event: S3Event = serde_json::from_str(text).ok()?;
    let created = event.records.into_iter().filter(|record| {
        record
            .event_name
            .as_deref()
            .is_some_and(|name| name.trim_start_matches("s3:").starts_with("ObjectCreated"))
    });
    let objects = created.filter_map(|record| {
        // S3's own notifications write a key as a form writes it.
        let key = record.s3.object.key?.replace('+', " ");
        Some(Object {
            bucket: record.s3.bucket.name?,
            key: percent_decode_str(&key).decode_utf8_lossy().into_owned(),
            etag: record.s3.object.e_tag.unwrap_or_default(),
            version: record.s3.object.version_id,
            position: Position::default(),
        })
    });
    Some(objects.collect())
}

#[derive(Deserialize)]
struct TestEvent {
    #[serde(rename = "Event")]
    event: String,
}

#[derive(Deserialize)]
struct ObjectCreated {
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    detail: Detail,
}

#[derive(Deserialize)]
struct Detail {
    bucket: BucketName,
    object: ObjectName,
}

#[derive(Deserialize)]
struct BucketName {
    name: String,
}

#[derive(Deserialize)]
struct ObjectName {
    key: String,
    etag: Option<String>,
    #[serde(rename = "version-id")]
    version: Option<String>,
}

/// A payload as the engine wants it: JSON as it came; other text as a JSON string; other bytes in base64, as
/// `{"base64": "…"}`.
pub(crate) fn payload(bytes: Bytes) -> Bytes {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    match std::str::from_utf8(&bytes) {
        Ok(text) if serde_json::from_str::<&RawValue>(text).is_ok() => bytes,
        Ok(text) => serde_json::Value::from(text).to_string().into(),
        Err(_) => serde_json::json!({"base64": STANDARD.encode(&bytes)}).to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_of_a_queue_keep_their_ids_groups_and_bytes() {
        let event = json!({"Records": [{
            "messageId": "m1", "receiptHandle": "r", "body": "{\"n\": 1.0}", "eventSource": "aws:sqs",
            "attributes": {"MessageGroupId": "g"}, "messageAttributes": {}, "awsRegion": "eu-north-1",
            "eventSourceARN": "arn:aws:sqs:eu-north-1:123:orders",
        }]});
        let Event::Queue(arrivals) = read(&event.to_string()).unwrap() else { panic!() };
        assert_eq!(
            arrivals,
            [Arrival {
                source: "arn:aws:sqs:eu-north-1:123:orders".to_owned(),
                name: "orders".to_owned(),
                id: "sqs:m1".to_owned(),
                key: Some("g".to_owned()),
                payload: Bytes::from_static(b"{\"n\": 1.0}"),
                handle: "m1".to_owned(),
            }]
        );
    }

    #[test]
    fn records_of_a_shard_are_decoded() {
        let event = json!({"Records": [{
            "eventID": "shardId-0:495", "eventSource": "aws:kinesis", "eventVersion": "1.0",
            "eventName": "aws:kinesis:record", "invokeIdentityArn": "arn:role", "awsRegion": "eu-north-1",
            "eventSourceARN": "arn:aws:kinesis:eu-north-1:123:stream/clicks",
            "kinesis": {"kinesisSchemaVersion": "1.0", "partitionKey": "k", "sequenceNumber": "495",
                        "data": "eyJhIjoxfQ==", "approximateArrivalTimestamp": 1545084650.987},
        }]});
        let Event::Shard(arrivals) = read(&event.to_string()).unwrap() else { panic!() };
        let arrival = &arrivals[0];
        assert_eq!(
            (arrival.name.as_str(), arrival.id.as_str()),
            ("clicks", "kinesis:shardId-0:495")
        );
        assert_eq!((arrival.payload.as_ref(), arrival.handle.as_str()), (&b"{\"a\":1}"[..], "495"));
        assert_eq!(arrival.key.as_deref(), Some("k"));
    }

    #[test]
    fn an_event_of_a_bus_is_kept_whole() {
        let event = r#"{"version":"0","id":"e1","detail-type":"Paid","source":"shop","detail":{"total":1.50}}"#;
        let Event::Messages(arrivals) = read(event).unwrap() else { panic!() };
        assert_eq!(arrivals[0].payload, event);
        assert_eq!(
            (arrivals[0].source.as_str(), arrivals[0].name.as_str()),
            ("events:shop/Paid", "shop")
        );
        assert_eq!(arrivals[0].id, "events:e1");
    }

    #[test]
    fn a_message_of_a_topic_is_its_text() {
        let event = json!({"Records": [{
            "EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": "arn:aws:sns:x:1:t:s",
            "Sns": {"Type": "Notification", "MessageId": "n1", "TopicArn": "arn:aws:sns:x:1:news", "Message": "hello",
                    "Timestamp": "2026-01-01T00:00:00.000Z", "SignatureVersion": "1", "Signature": "s",
                    "SigningCertUrl": "u", "UnsubscribeUrl": "u", "MessageAttributes": {}},
        }]});
        let Event::Messages(arrivals) = read(&event.to_string()).unwrap() else { panic!() };
        assert_eq!(
            (arrivals[0].name.as_str(), arrivals[0].payload.as_ref()),
            ("news", &b"hello"[..])
        );
    }

    #[test]
    fn objects_are_found_wherever_they_are_named() {
        let expected = |key: &str, version: Option<&str>| Object {
            bucket: "b".to_owned(),
            key: key.to_owned(),
            etag: "tag".to_owned(),
            version: version.map(str::to_owned),
            position: Position::default(),
        };
        let notification = json!({"Records": [{
            "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
            "eventTime": "2026-01-01T00:00:00.000Z", "awsRegion": "x",
            "userIdentity": {}, "requestParameters": {}, "responseElements": {},
            "s3": {"bucket": {"name": "b"}, "object": {"key": "a+b%2Bc/%C3%A9.csv", "size": 3, "eTag": "tag"}},
        }]})
        .to_string();
        assert_eq!(objects_in(&notification), Some(vec![expected("a b+c/é.csv", None)]));
        assert_eq!(
            read(&notification).unwrap(),
            Event::Objects(vec![expected("a b+c/é.csv", None)])
        );
        let bus =
            json!({"id": "1", "source": "aws.s3", "detail-type": "Object Created", "detail": {
            "bucket": {"name": "b"}, "object": {"key": "a+b", "etag": "tag", "version-id": "v"}}})
            .to_string();
        assert_eq!(read(&bus).unwrap(), Event::Objects(vec![expected("a+b", Some("v"))]));
        let removed = notification.replace("ObjectCreated:Put", "ObjectRemoved:Delete");
        assert_eq!(objects_in(&removed), Some(Vec::new()));
        assert_eq!(
            objects_in(r#"{"Service":"Amazon S3","Event":"s3:TestEvent"}"#),
            Some(Vec::new())
        );
        assert_eq!(objects_in(r#"{"order": 1}"#), None);
        let position = Position { at: 7, row: 2, header: vec!["a".to_owned()] };
        let object = Object { position, ..expected("k", None) };
        assert_eq!(objects_in(&object.to_message()), Some(vec![object]));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for text in [
            "{}",
            "[]",
            "1",
            r#"{"Records": []}"#,
            r#"{"Records": [{"eventSource": "aws:dynamodb"}]}"#,
        ] {
            assert!(matches!(read(text), Err(UnknownEvent::Kind)), "{text}");
        }
    }

    #[test]
    fn payloads_become_json_and_json_stays_as_it_is() {
        for (bytes, expected) in [
            (&b"{\"a\": 1.0, \"a\": 2}"[..], "{\"a\": 1.0, \"a\": 2}"),
            (b"hello \"you\"", r#""hello \"you\"""#),
            (b"", r#""""#),
            (&[255, 0], r#"{"base64":"/wA="}"#),
        ] {
            assert_eq!(payload(Bytes::copy_from_slice(bytes)), expected);
        }
    }
}
