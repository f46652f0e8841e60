//! Tables in a bucket: S3's own conditional writes, by an emulator of it. Run by `tests/run emulator`.

use std::sync::Arc;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use object_store::{ObjectStore, aws::AmazonS3Builder};
use tidewheel_store::Env;
use tidewheel_tables::{Error, Settings};

use crate::{
    crash::{enumerate_from, prepare},
    fake::{Fault, Fuse, World},
    seal::assert_exact,
};

/// The variable by which the emulator is found.
const S3: &str = "TIDEWHEEL_TEST_S3";
const REGION: &str = "us-east-1";

/// A bucket that nobody else has.
async fn bucket() -> Arc<dyn ObjectStore> {
    let endpoint = std::env::var(S3).unwrap_or_else(|_| {
        panic!("{S3} is not set: run this under tests/emulator/with, or tests/run emulator")
    });
    let name = format!("t{}", Env::system().token());
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(&endpoint)
        .force_path_style(true);
    let client = aws_sdk_s3::Client::from_conf(config.build());
    client.create_bucket().bucket(&name).send().await.expect("a bucket");
    let objects = AmazonS3Builder::new()
        .with_bucket_name(name)
        .with_region(REGION)
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .build();
    Arc::new(objects.expect("an object store"))
}

/// The hint names the metadata that the head names.
async fn assert_hinted(world: &World) {
    let location = world.tables().location("s").await.unwrap();
    let hint = world.hint("s").await.unwrap();
    assert!(location.metadata.unwrap().contains(&format!("/{hint}.metadata.json")), "{hint}");
}

#[tokio::test]
#[ignore = "needs the emulators: tests/run emulator"]
async fn a_hint_in_a_bucket_only_moves_forward() {
    let world = World::with_objects(bucket().await);
    for n in 0..4 {
        world.streams.push("s", "p", [format!("{n}")]);
        // A process of its own each time: none remembers where the hint is.
        assert!(world.tables().seal("s").await.unwrap().hinted);
        assert_hinted(&world).await;
    }
    let hint = world.hint("s").await.unwrap();
    assert!(hint.starts_with("00004-"), "{hint}");
    // A sealer that comes late moves nothing back.
    let late = world.tables();
    world.streams.push("s", "p", ["\"late\"".to_owned()]);
    assert_eq!(late.seal("s").await.unwrap().rows, 1);
    assert_hinted(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the emulators: tests/run emulator"]
async fn several_sealers_put_each_row_into_the_bucket_once() {
    let world = World::with_objects(bucket().await);
    let (mut rows, mut conflicts) = (0, 0);
    for round in 0..6 {
        for p in ["a", "b", "c"] {
            world.streams.push("s", p, (0..40).map(|n| format!("{{\"round\":{round},\"n\":{n}}}")));
        }
        let sealers: Vec<_> = (0..4)
            .map(|_| {
                let tables = world.process_with(&Fuse::never(), Settings::default());
                tokio::spawn(async move { tables.seal("s").await })
            })
            .collect();
        for sealer in sealers {
            match sealer.await.unwrap() {
                Ok(sealed) => rows += sealed.rows,
                Err(Error::Conflict(_)) => conflicts += 1,
                Err(e) => panic!("{e}"),
            }
        }
        assert_exact(&world, "s").await;
        assert_hinted(&world).await;
    }
    assert_eq!(rows, 720);
    assert!(conflicts > 0, "the sealers never met");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the emulators: tests/run emulator"]
async fn a_seal_into_a_bucket_may_die_at_any_call() {
    let objects = bucket().await;
    let start = prepare(World::with_objects(objects), 2).await;
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        let calls = enumerate_from(&start, 2, fault).await;
        assert!(calls > 8, "only {calls} calls");
    }
}
