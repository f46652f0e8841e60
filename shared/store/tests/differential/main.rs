//! The same random history on every back end gives the same answers, the same images, and the same end.
#![cfg(feature = "embedded")]

#[cfg(feature = "dynamodb")]
mod deployed;
#[cfg(feature = "dynamodb")]
#[path = "../emulator/mod.rs"]
mod emulator;
mod steps;

use proptest::prelude::*;
use tidewheel_store::{Embedded, Memory, Query, Store, embedded::Options};

use crate::steps::{Step, answer, give_up_blobs, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_embedded_agree(steps in proptest::collection::vec(step(), 1..60), small_cache in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let dir = tempfile::tempdir().expect("a folder");
            let cache_bytes = if small_cache { 0 } else { 1 << 20 };
            let open = || {
                Embedded::open(dir.path(), Options { cache_bytes, ..Options::default() }).expect("a store")
            };
            let memory = Memory::new();
            let mut embedded = open();
            for (at, step) in steps.iter().enumerate() {
                if matches!(step, Step::Restart) {
                    drop(embedded);
                    embedded = open();
                    continue;
                }
                let (left, right) = (answer(&memory, step).await, answer(&embedded, step).await);
                assert_eq!(left, right, "step {at}: {step:?}");
                if !left.starts_with("Ok") {
                    give_up_blobs(&memory, step).await;
                    give_up_blobs(&embedded, step).await;
                }
            }
            for pk in ["p", "q"] {
                let all = Step::Query(Query::all(pk));
                assert_eq!(answer(&memory, &all).await, answer(&embedded, &all).await);
            }
            for name in embedded.list_blobs("o", None, 100).await.expect("a list") {
                let read = Step::Blob(name, None);
                assert_eq!(answer(&memory, &read).await, answer(&embedded, &read).await);
            }
        });
    }
}
