//! The deployed store, opened as a function opens it, on the emulators.

#[path = "../../store/tests/emulator/mod.rs"]
mod emulator;

use tidewheel_cloud::{
    Environment,
    environment::{BUCKET, TABLE},
    open,
};
use tidewheel_store::{Blob, Commit, Consistency, Env, Item, Key, Store, Write};

use crate::emulator::Place;

#[tokio::test]
#[ignore = "needs the emulators: tests/run emulator"]
async fn what_a_function_is_told_opens_a_store_that_works() {
    let place = Place::make().await;
    let environment = Environment::from_lookup(|name| match name {
        TABLE | BUCKET => Some(place.name.clone()),
        other => std::env::var(other).ok(),
    });
    let environment = environment.expect("tests/emulator/with --sdk sets what the SDK reads");
    assert!(environment.path_style, "tests/emulator/with --sdk names the endpoints");
    let opened = open(&environment).await.expect("a region");
    opened.warm().await.expect("a table and a bucket");

    let (key, blob) = (Key::new("p", "head"), Blob::fresh("p", vec![7; 20_000], &Env::system()));
    let head = Item::new().with("blob", blob.name.id.as_str());
    let name = blob.name.clone();
    let commit = Commit::one(Write::put(key.clone(), head.clone())).with_blob(blob);
    opened.store.commit(commit).await.expect("a commit");
    let elsewhere = place.store();
    assert_eq!(elsewhere.get(&key, Consistency::Strong).await, Ok(Some(head)));
    assert_eq!(elsewhere.blob(&name, None).await.expect("a read").map(|b| b.len()), Some(20_000));

    let nowhere = Environment { table: "nowhere".to_owned(), ..environment };
    let opened = open(&nowhere).await.expect("a region");
    let error = opened.warm().await.expect_err("there is no such table").to_string();
    assert!(error.contains("ResourceNotFoundException"), "{error}");
}
