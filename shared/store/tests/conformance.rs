//! Every back end of this crate passes the conformance suite.

mod memory {
    use std::sync::Arc;

    use tidewheel_store::{Memory, Store, conformance_tests};

    async fn make() -> (Arc<dyn Store>, ()) {
        (Arc::new(Memory::new()), ())
    }

    conformance_tests!(make().await);

    #[tokio::test]
    async fn transaction_size_limit_of_updates() {
        tidewheel_store::conformance::transaction_size_limit_of_updates(make().await.0).await;
    }
}

#[cfg(feature = "embedded")]
mod embedded {
    use std::sync::Arc;

    use tempfile::TempDir;
    use tidewheel_store::{Embedded, Store, conformance_tests, embedded::Options};

    fn make(options: Options) -> (Arc<dyn Store>, TempDir) {
        let dir = tempfile::tempdir().expect("a folder");
        (Arc::new(Embedded::open(dir.path(), options).expect("a store")), dir)
    }

    conformance_tests!(make(Options::default()));

    #[tokio::test]
    async fn transaction_size_limit_of_updates() {
        let (store, _dir) = make(Options::default());
        tidewheel_store::conformance::transaction_size_limit_of_updates(store).await;
    }

    /// The same without a cache worth the name and with a queue that is always full.
    mod cramped {
        use super::*;

        fn cramped() -> Options {
            Options { queue: 1, queue_bytes: 1, cache_bytes: 0, readers: 1, max_bytes: None }
        }

        conformance_tests!(make(cramped()));
    }
}

/// The wrapper that breaks things is transparent when it breaks nothing.
mod faulty_without_faults {
    use std::sync::Arc;

    use tidewheel_store::{Env, Faulty, Memory, Store, conformance_tests, faulty::Plan};

    async fn make() -> (Arc<dyn Store>, ()) {
        let env = Env::simulated(1, 1_700_000_000_000_000, 0);
        (Arc::new(Faulty::new(Arc::new(Memory::new()), Plan::none(), env)), ())
    }

    conformance_tests!(make().await);
}

#[cfg(feature = "dynamodb")]
mod emulator;

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use std::sync::Arc;

    use tidewheel_store::{Store, conformance_tests};

    use super::emulator::Place;

    async fn make() -> (Arc<dyn Store>, ()) {
        (Arc::new(Place::make().await.store()), ())
    }

    conformance_tests!(make().await; #[ignore = "needs the emulators: tests/run emulator"]);
}
