//! Where work goes that another invocation shall do.

use async_trait::async_trait;
use tidewheel_cloud::{Queue, SendError};

/// Takes messages for later.
#[async_trait]
pub(crate) trait Outbox: Send + Sync + 'static {
    /// Sends messages; after an error some of them may have been sent.
    async fn send(&self, messages: &[String]) -> Result<(), SendError>;
}

#[async_trait]
impl Outbox for Queue {
    async fn send(&self, messages: &[String]) -> Result<(), SendError> {
        Queue::send(self, messages).await
    }
}
