//! Encryption at rest as an operator sees it: the files of the data folder, and what happens without the right key.

mod common;

use std::{fs, path::Path};

use common::{http, options, push, receive_json, receive_row, start};
use serde_json::json;
use tidewheel_localstack::{Stack, StartError};

const SECRET: &str = "nobody-may-read-this";

/// True if a file below the folder holds the text.
fn holds(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, text),
            false => fs::read(&path).unwrap().windows(text.len()).any(|w| w == text.as_bytes()),
        }
    })
}

fn secret(n: u64) -> String {
    json!({"n": n, "text": SECRET}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_holds_a_payload_and_the_key_file_opens_it() {
    let (folder, stack) = start().await;
    let data = folder.path().join("data");
    let configure = json!({"queue": "s", "options": {"encryptionEnabled": true}}).to_string();
    let (status, answer) = http(&stack, "POST /api/v1/configure", &configure).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("\"encryptionEnabled\":true"), "{answer}");
    push(&stack, "s", "Default", &[secret(0), secret(1)]).await;
    // A socket reads what is encrypted like anything else.
    let mut socket = common::connect(&stack, "/s?offset=0").await;
    receive_json(&mut socket).await;
    assert_eq!(receive_row(&mut socket).await.1["text"], SECRET);
    stack.stop().await;
    assert!(!holds(&data, SECRET));
    assert!(!data.join("tables/s").exists(), "no table was published");

    let stack = Stack::start(&options(&folder)).await.unwrap();
    let pop = "GET /api/v1/pop/queue/s?consumerGroup=g&subscriptionMode=all";
    let (status, popped) = http(&stack, pop, "").await;
    assert_eq!(status, 200);
    assert_eq!(popped.matches(SECRET).count(), 2, "{popped}");
    push(&stack, "open", "Default", &[secret(0)]).await;
    stack.stop().await;
    assert!(holds(&data, SECRET), "what is not encrypted would have been found");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_key_nothing_starts() {
    let (folder, stack) = start().await;
    let configure = json!({"queue": "s", "options": {"encryptionEnabled": true}}).to_string();
    assert_eq!(http(&stack, "POST /api/v1/configure", &configure).await.0, 200);
    push(&stack, "s", "Default", &[secret(0)]).await;
    stack.stop().await;

    let made = folder.path().join("data/encryption-keys");
    let elsewhere = folder.path().join("keys");
    fs::rename(&made, &elsewhere).unwrap();
    let refused = async |options: &_| match Stack::start(options).await {
        Err(e @ StartError::Keys { .. }) => e.to_string(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it started"),
    };
    let mut options = options(&folder);
    let error = refused(&options).await;
    assert!(error.contains("encryption-keys") && error.contains("not there"), "{error}");
    assert!(!made.exists(), "no new key takes the old one's place");

    let wrong = folder.path().join("wrong");
    fs::write(&wrong, "ab".repeat(32)).unwrap();
    options.encryption_key_file = Some(wrong);
    let error = refused(&options).await;
    assert!(error.contains("none of its keys"), "{error}");

    options.encryption_key_file = Some(elsewhere);
    Stack::start(&options).await.unwrap().stop().await;
}
