//! What the services' failures become, on scripted replies and on broken connections: no emulator shows throttling,
//! transactions in each other's way, faults inside the service or lost replies.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    sync::Arc,
    time::Duration,
};

use aws_sdk_dynamodb::config::{
    BehaviorVersion, Credentials, Region, retry::RetryConfig, timeout::TimeoutConfig,
};
use aws_smithy_runtime_api::{
    client::{
        http::{
            HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings,
            SharedHttpConnector,
        },
        orchestrator::{HttpRequest, HttpResponse},
        result::ConnectorError,
        runtime_components::RuntimeComponents,
    },
    http::StatusCode,
};
use aws_smithy_types::body::SdkBody;

use super::*;
use crate::{
    Blob, Change, Commit, Condition, Env, Failed, Invalid, Query, Value, Write, blob,
    blob::FRAME_BYTES,
};

/// What becomes of a request.
#[derive(Clone, Debug)]
enum Reply {
    /// An answer.
    Says(u16, String),
    /// The connection breaks after the request was sent.
    Breaks,
    /// Nothing, ever.
    IsSilent,
}

/// Both services, saying what they are told to, in order, and writing down what they are asked.
#[derive(Clone, Debug, Default)]
struct Script {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    /// The operation (or method and path) and the body.
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl HttpConnector for Script {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let operation = match request.headers().get("x-amz-target") {
            Some(target) => target.rsplit('.').next().unwrap_or_default().to_owned(),
            None => {
                let path = request.uri().split("//").nth(1).unwrap_or_default();
                format!("{} {path}", request.method())
            }
        };
        let body = request.body().bytes().unwrap_or_default();
        self.requests.lock().push((operation.clone(), String::from_utf8_lossy(body).into_owned()));
        let reply = self.replies.lock().pop_front();
        match reply.unwrap_or_else(|| panic!("{operation} was not expected")) {
            Reply::Says(status, body) => {
                let status = StatusCode::try_from(status).expect("a status");
                HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body))))
            }
            Reply::Breaks => HttpConnectorFuture::ready(Err(ConnectorError::io(
                std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
            ))),
            Reply::IsSilent => HttpConnectorFuture::new(std::future::pending()),
        }
    }
}

impl HttpClient for Script {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

/// A store on these services.
fn store_on(client: Option<Script>, endpoint: &str) -> DynamoDb {
    let timeouts =
        TimeoutConfig::builder().operation_attempt_timeout(Duration::from_secs(5)).build();
    let credentials = Credentials::new("test", "test", None, None, "test");
    let mut dynamo = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials.clone())
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(timeouts.clone())
        .endpoint_url(endpoint);
    let mut s3 = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials)
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(timeouts)
        .force_path_style(true)
        .endpoint_url(endpoint);
    if let Some(client) = client {
        dynamo = dynamo.http_client(client.clone());
        s3 = s3.http_client(client);
    }
    DynamoDb::new(
        aws_sdk_dynamodb::Client::from_conf(dynamo.build()),
        aws_sdk_s3::Client::from_conf(s3.build()),
        Options::new("heads", "blobs"),
    )
}

fn scripted(replies: impl IntoIterator<Item = Reply>) -> (DynamoDb, Script) {
    let script = Script::default();
    script.replies.lock().extend(replies);
    (store_on(Some(script.clone()), "http://scripted"), script)
}

impl Script {
    fn asked(&self) -> Vec<String> {
        self.requests.lock().iter().map(|(operation, _)| operation.clone()).collect()
    }

    fn body(&self, at: usize) -> String {
        self.requests.lock()[at].1.clone()
    }
}

fn refusal(code: &str) -> Reply {
    fault(400, code)
}

fn fault(status: u16, code: &str) -> Reply {
    let body =
        format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"so it is"}}"#);
    Reply::Says(status, body)
}

fn says(body: &str) -> Reply {
    Reply::Says(200, body.to_owned())
}

fn s3_refusal(status: u16, code: &str) -> Reply {
    Reply::Says(status, format!("<Error><Code>{code}</Code><Message>so it is</Message></Error>"))
}

fn key(sk: &str) -> Key {
    Key::new("p", sk)
}

fn add(sk: &str) -> Write {
    Write::update(key(sk), vec![Change::Add("n".into(), 1)])
}

fn one() -> Commit {
    Commit::one(add("a").when(Condition::Exists))
}

fn two() -> Commit {
    Commit::all(vec![add("a").when(Condition::Exists), add("b").when(Condition::Exists)])
}

/// What one commit is answered when the service says this, and that it is asked once.
async fn answer(commit: Commit, reply: Reply) -> CommitError {
    let (store, script) = scripted([reply]);
    let error = store.commit(commit).await.expect_err("a failure");
    assert_eq!(script.asked().len(), 1, "a commit was sent again: {:?}", script.asked());
    error
}

#[tokio::test]
async fn refusals_are_told_by_what_they_mean_and_nothing_is_sent_twice() {
    for commit in [
        one(),
        two(),
        Commit::one(Write::delete(key("a"))),
        Commit::one(Write::put(key("a"), Item::new())),
    ] {
        for code in ["TransactionConflictException", "ReplicatedWriteConflictException"] {
            assert_eq!(answer(commit.clone(), refusal(code)).await, CommitError::Contended);
        }
        for code in [
            "ProvisionedThroughputExceededException",
            "ThrottlingException",
            "RequestLimitExceeded",
        ] {
            assert_eq!(
                answer(commit.clone(), refusal(code)).await,
                CommitError::Throttled,
                "{code}"
            );
        }
        for code in ["AccessDeniedException", "ResourceNotFoundException", "ExpiredTokenException"]
        {
            let error = answer(commit.clone(), refusal(code)).await;
            let CommitError::Unavailable(why) = error else { panic!("{code}: {error}") };
            assert!(why.contains(code) && why.contains("so it is"), "{why}");
        }
    }
    let mismatch = answer(two(), refusal("IdempotentParameterMismatchException")).await;
    assert!(matches!(mismatch, CommitError::Unavailable(_)), "{mismatch}");
}

#[tokio::test(start_paused = true)]
async fn what_may_have_happened_is_unknown() {
    for commit in [one(), two()] {
        for reply in [
            fault(500, "InternalServerError"),
            fault(503, "ServiceUnavailable"),
            Reply::Says(200, "{ no JSON".to_owned()),
            Reply::Breaks,
            Reply::IsSilent,
        ] {
            let error = answer(commit.clone(), reply.clone()).await;
            assert!(matches!(error, CommitError::Unknown(_)), "{reply:?}: {error}");
        }
    }
    let running = answer(two(), refusal("TransactionInProgressException")).await;
    assert!(matches!(running, CommitError::Unknown(_)), "{running}");
    // It was written, and what it left cannot be told.
    let odd = says(r#"{"Attributes":{"pk":{"S":"p"},"sk":{"S":"a"},"n":{"N":"1.5"}}}"#);
    let error = answer(one(), odd).await;
    assert!(matches!(error, CommitError::Unknown(_)), "{error}");
}

/// A server that accepts a connection, waits for a request, and hangs up.
fn hangs_up() -> (std::net::SocketAddr, std::thread::JoinHandle<usize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4096];
        let read = stream.read(&mut request).expect("a request");
        stream.flush().expect("a stream");
        read
    });
    (address, served)
}

#[tokio::test]
async fn a_connection_that_was_never_made_is_told_from_one_that_broke() {
    let (address, served) = hangs_up();
    let store = store_on(None, &format!("http://{address}"));
    let error = store.commit(one()).await.expect_err("a failure");
    assert!(served.join().expect("the server") > 0, "the request was sent");
    assert!(matches!(error, CommitError::Unknown(_)), "{error}");
    // Nobody listens there any more.
    let error = store.commit(one()).await.expect_err("a failure");
    assert!(matches!(error, CommitError::Unavailable(_)), "{error}");
    let read = store.get(&key("a"), Consistency::Strong).await;
    assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
    // Nor is there such a name.
    let store = store_on(None, "http://nowhere.invalid");
    let error = store.commit(one()).await.expect_err("a failure");
    assert!(matches!(error, CommitError::Unavailable(_)), "{error}");
}

const ITEM_A: &str = r#"{"pk":{"S":"p"},"sk":{"S":"a"},"n":{"N":"7"}}"#;

fn reason(code: &str) -> String {
    format!(r#"{{"Code":"{code}","Message":"so it is"}}"#)
}

fn failed(item: &str) -> String {
    format!(r#"{{"Code":"ConditionalCheckFailed","Message":"it failed","Item":{item}}}"#)
}

fn cancelled(reasons: &[String]) -> Reply {
    Reply::Says(
        400,
        format!(
            r#"{{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","message":"cancelled","CancellationReasons":[{}]}}"#,
            reasons.join(",")
        ),
    )
}

#[tokio::test]
async fn a_cancelled_transaction_is_a_conflict_only_when_all_its_items_were_looked_at() {
    // On the condition that a number is absent, so that the item that comes with the refusal explains it.
    let guarded = |sk: &str| add(sk).when(Condition::Lacks("n".into()));
    let pair = || Commit::all(vec![guarded("a"), guarded("b")]);
    let none = || r#"{"Code":"None"}"#.to_owned();
    let a = Some(Item::new().with("n", 7));
    let first = || Failed { write: 0, current: a.clone() };
    for (reasons, due) in [
        ([failed(ITEM_A), none()], CommitError::Conflict(vec![first()])),
        (
            [failed(ITEM_A), reason("ConditionalCheckFailed")],
            CommitError::Conflict(vec![first(), Failed { write: 1, current: None }]),
        ),
        ([failed(ITEM_A), reason("ValidationError")], CommitError::Conflict(vec![first()])),
        ([failed(ITEM_A), reason("TransactionConflict")], CommitError::Contended),
        ([reason("TransactionConflict"), none()], CommitError::Contended),
        ([reason("TransactionConflict"), reason("ThrottlingError")], CommitError::Contended),
        ([failed(ITEM_A), reason("ThrottlingError")], CommitError::Throttled),
        ([none(), reason("ProvisionedThroughputExceeded")], CommitError::Throttled),
    ] {
        assert_eq!(answer(pair(), cancelled(&reasons)).await, due, "{reasons:?}");
    }
}

#[tokio::test]
async fn a_failed_condition_brings_its_item_and_what_it_cost() {
    let refused = Reply::Says(
        400,
        format!(
            r#"{{"__type":"x#ConditionalCheckFailedException","message":"it failed","Item":{ITEM_A}}}"#
        ),
    );
    let (store, _) = scripted([refused.clone(), refused]);
    let absent = Commit::one(add("a").when(Condition::Absent));
    let current = Some(Item::new().with("n", 7));
    let error = store.commit(absent).await.expect_err("a conflict");
    assert_eq!(error, CommitError::Conflict(vec![Failed { write: 0, current }]));
    assert_eq!(store.meter().write_units, 1.0);
    // Every condition of the caller's holds of that item: what failed is the guard against a sum beyond 64 bits.
    let most = Write::update(key("a"), vec![Change::Add("n".into(), i64::MAX)]);
    let error = store.commit(Commit::one(most)).await.expect_err("no room");
    assert_eq!(error, Invalid::AttributeType { attribute: "n".into() }.into());
}

/// The service says that an update does not fit, and not why; the item says it.
#[tokio::test]
async fn a_fault_that_only_the_item_shows_is_found_in_the_item() {
    let found = |attributes: &str| {
        says(&format!(
            r#"{{"Responses":{{"heads":[{{"pk":{{"S":"p"}},"sk":{{"S":"a"}},{attributes}}}]}}}}"#
        ))
    };
    let judged = async |commit: Commit, refused: Reply, item: Reply| {
        let (store, script) = scripted([refused, item]);
        let error = store.commit(commit).await.expect_err("a fault");
        assert_eq!(script.asked().last().map(String::as_str), Some("BatchGetItem"));
        error
    };
    let both = || Commit::all(vec![add("a").when(Condition::Exists), add("b")]);
    for (commit, refused) in [
        (one(), refusal("ValidationException")),
        (both(), refusal("ValidationException")),
        (both(), cancelled(&[reason("ValidationError"), reason("None")])),
    ] {
        let error = judged(commit, refused, found(r#""n":{"S":"text"}"#)).await;
        assert_eq!(error, Invalid::AttributeType { attribute: "n".into() }.into());
    }
    // The service looked at conditions first, so they held then; they hold no more.
    let error = judged(one(), refusal("ValidationException"), says(r#"{"Responses":{}}"#)).await;
    assert_eq!(error, CommitError::Contended);
    // Nothing is wrong with it that this crate knows: the service's words are passed on.
    let (store, _) = scripted([refusal("ValidationException"), found(r#""n":{"N":"1"}"#)]);
    let error = store.commit(one()).await.expect_err("a fault");
    let CommitError::Unavailable(why) = error else { panic!("{error}") };
    assert!(why.contains("ValidationException") && why.contains("so it is"), "{why}");
}

#[tokio::test]
async fn every_transaction_has_a_token_of_its_own() {
    let (store, script) = scripted([says("{}"), says("{}")]);
    for _ in 0..2 {
        store.commit(two()).await.expect("a transaction");
    }
    let token = |at: usize| {
        let body = script.body(at);
        let token = body.split(r#""ClientRequestToken":""#).nth(1).expect("a token");
        token.split('"').next().expect("an end").to_owned()
    };
    assert_eq!(token(0).len(), 32);
    assert_ne!(token(0), token(1));
}

#[tokio::test(start_paused = true)]
async fn reads_are_repeated_and_at_last_told() {
    let item = says(&format!(r#"{{"Item":{ITEM_A}}}"#));
    let (store, script) = scripted([fault(500, "InternalServerError"), Reply::Breaks, item]);
    let read = store.get(&key("a"), Consistency::Strong).await;
    assert_eq!(read, Ok(Some(Item::new().with("n", 7))));
    assert_eq!(script.asked(), ["GetItem"; 3]);
    let (store, _) = scripted([(); 3].map(|()| refusal("ThrottlingException")));
    assert_eq!(store.query(&Query::all("p")).await, Err(ReadError::Throttled));
}

#[tokio::test]
async fn a_batch_that_comes_in_parts_is_asked_for_until_nothing_moves() {
    let left = r#""UnprocessedKeys":{"heads":{"Keys":[{"pk":{"S":"p"},"sk":{"S":"b"}}]}}"#;
    let part = says(&format!(r#"{{"Responses":{{"heads":[{ITEM_A}]}},{left}}}"#));
    let nothing = says(&format!(r#"{{"Responses":{{}},{left}}}"#));
    let (store, _) = scripted([part.clone(), says(r#"{"Responses":{}}"#)]);
    let keys = [key("b"), key("a")];
    assert_eq!(store.batch_get(&keys).await, Ok(vec![None, Some(Item::new().with("n", 7))]));
    let (store, script) = scripted([part, nothing]);
    assert_eq!(store.batch_get(&keys).await, Err(ReadError::Throttled));
    assert_eq!(script.asked().len(), 2);
}

fn with_blob(bytes: usize) -> Commit {
    one().with_blob(Blob::fresh("o", vec![7; bytes], &Env::system()))
}

/// A blob that did not become durable, or perhaps did not, keeps the head from naming it.
#[tokio::test(start_paused = true)]
async fn no_write_is_sent_before_all_blobs_are_there() {
    let due = |error: &CommitError| match error {
        CommitError::Unavailable(_) => "unavailable",
        CommitError::Throttled => "throttled",
        CommitError::Contended => "contended",
        _ => "something else",
    };
    for (bytes, reply, means) in [
        (10, fault(500, "InternalServerError"), "unavailable"),
        (10, Reply::Breaks, "unavailable"),
        (10, Reply::IsSilent, "unavailable"),
        (10, refusal("ThrottlingException"), "throttled"),
        (20_000, s3_refusal(500, "InternalError"), "unavailable"),
        (20_000, Reply::Breaks, "unavailable"),
        (20_000, s3_refusal(403, "AccessDenied"), "unavailable"),
        (20_000, s3_refusal(503, "SlowDown"), "throttled"),
        (20_000, s3_refusal(409, "ConditionalRequestConflict"), "contended"),
    ] {
        let (store, script) = scripted([reply.clone(), reply.clone(), reply.clone()]);
        let error = store.commit(with_blob(bytes)).await.expect_err("a failure");
        assert_eq!(due(&error), means, "{reply:?}: {error}");
        assert!(!script.asked().iter().any(|o| o == "UpdateItem"), "{:?}", script.asked());
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_there_already_is_our_own() {
    let image = says(&format!(r#"{{"Attributes":{ITEM_A}}}"#));
    let replies = [Reply::Breaks, s3_refusal(412, "PreconditionFailed"), image];
    let (store, script) = scripted(replies);
    store.commit(with_blob(20_000)).await.expect("a commit");
    let asked = script.asked();
    assert!(asked[0].starts_with("PUT") && asked[1] == asked[0], "{asked:?}");
    assert_eq!(asked[2], "UpdateItem");
}

#[tokio::test]
async fn a_damaged_blob_is_never_served() {
    let mut name = BlobName::new("o", "small");
    let mut frame = blob::seal(&name, b"a body");
    frame[FRAME_BYTES] ^= 1;
    let base64 = |bytes: &[u8]| aws_smithy_types::base64::encode(bytes);
    let item = says(&format!(r#"{{"Item":{{"b":{{"B":"{}"}}}}}}"#, base64(&frame)));
    let (store, _) = scripted([item]);
    let read = store.blob(&name, None).await;
    assert!(matches!(read, Err(ReadError::Corrupt { .. })), "{read:?}");

    name = Blob::fresh("o", vec![7; 20_000], &Env::system()).name;
    let object = String::from_utf8(vec![b'x'; 100]).expect("text");
    let (store, _) = scripted([Reply::Says(200, object)]);
    let read = store.blob(&name, None).await;
    assert!(matches!(read, Err(ReadError::Corrupt { .. })), "{read:?}");
}

/// The cheap read may be too old to know a blob that was just stored.
#[tokio::test]
async fn a_small_blob_that_an_old_copy_does_not_know_is_found() {
    let name = BlobName::new("o", "small");
    let frame = aws_smithy_types::base64::encode(blob::seal(&name, b"a body"));
    let item = says(&format!(r#"{{"Item":{{"b":{{"B":"{frame}"}}}}}}"#));
    let (store, script) = scripted([says("{}"), item]);
    let read = store.blob(&name, None).await.expect("a read");
    assert_eq!(read.as_deref(), Some(&b"a body"[..]));
    assert!(script.body(0).contains(r#""ConsistentRead":false"#), "{}", script.body(0));
    assert!(script.body(1).contains(r#""ConsistentRead":true"#), "{}", script.body(1));
}

#[tokio::test]
async fn a_delete_that_is_done_in_part_is_throttled() {
    let left = says(
        r#"{"UnprocessedItems":{"heads":[{"DeleteRequest":{"Key":{"pk":{"S":"p"},"sk":{"S":"b"}}}}]}}"#,
    );
    let none = Reply::Says(200, "<DeleteResult></DeleteResult>".to_owned());
    let (store, script) = scripted([left, none]);
    let names = [BlobName::new("o", "small")];
    assert_eq!(store.delete_blobs(&names).await, Err(CommitError::Throttled));
    assert_eq!(script.asked().len(), 2, "{:?}", script.asked());
}

#[tokio::test]
async fn warming_wants_a_table_that_can_be_read_and_a_bucket_that_answers() {
    let (store, _) = scripted([says("{}"), s3_refusal(403, "Forbidden")]);
    assert_eq!(store.warm().await, Ok(()));
    let (store, _) = scripted([refusal("ResourceNotFoundException"), s3_refusal(200, "")]);
    assert!(matches!(store.warm().await, Err(ReadError::Unavailable(_))));
}

/// What a value says in the console.
#[tokio::test]
async fn attributes_have_the_services_own_types() {
    let (store, script) = scripted([says("{}")]);
    let item = Item::new()
        .with("text", "x")
        .with("number", 7)
        .with("list", vec![Value::Bool(true)])
        .with("names", Value::StrSet(["a".to_owned()].into()));
    store.commit(Commit::one(Write::put(key("a"), item))).await.expect("a put");
    let body = script.body(0);
    for part in [
        r#""pk":{"S":"p"}"#,
        r#""text":{"S":"x"}"#,
        r#""number":{"N":"7"}"#,
        r#""list":{"L":[{"BOOL":true}]}"#,
        r#""names":{"SS":["a"]}"#,
        r#""ReturnValuesOnConditionCheckFailure":"ALL_OLD""#,
    ] {
        assert!(body.contains(part), "{part} is not in {body}");
    }
}
