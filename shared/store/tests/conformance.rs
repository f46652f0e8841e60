//! Every back end of this crate passes the conformance suite.

mod memory {
    use std::sync::Arc;

    use tidewheel_store::{Memory, Store, conformance_tests};

    async fn make() -> (Arc<dyn Store>, ()) {
        (Arc::new(Memory::new()), ())
    }

    conformance_tests!(make().await);
}
