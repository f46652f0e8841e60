//! The fan-out function, as those see it who ask it for work: pushes that ring, and invocations that go on in another.
//!
//! An invocation is asynchronous: it is queued and answered at once, and may happen twice. Whatever is asked for can be
//! done twice.

use std::time::Duration;

use async_trait::async_trait;
use aws_config::{SdkConfig, timeout::TimeoutConfig};
use aws_sdk_lambda::{Client, primitives::Blob, types::InvocationType};
use tidewheel_engine::{Doorbell, NotRung, PartitionId};

/// How long one attempt to reach the function may take. A push waits for it.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// The fan-out function.
#[derive(Clone, Debug)]
pub struct Fanout {
    client: Client,
    function: String,
}

impl Fanout {
    /// The function of this name or ARN.
    pub fn new(sdk: &SdkConfig, function: impl Into<String>) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(ATTEMPT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let config = aws_sdk_lambda::config::Builder::from(sdk).timeout_config(timeouts).build();
        Self { client: Client::from_conf(config), function: function.into() }
    }

    /// Asks for an invocation with this event.
    async fn ask(&self, event: String) -> Result<(), String> {
        let asked = self
            .client
            .invoke()
            .function_name(&self.function)
            .invocation_type(InvocationType::Event)
            .payload(Blob::new(event))
            .send()
            .await;
        match asked {
            Ok(_) => Ok(()),
            Err(error) => Err(crate::failure::brief(&error)),
        }
    }
}

#[async_trait]
impl Doorbell for Fanout {
    async fn ring(&self, partition: &PartitionId) -> Result<(), NotRung> {
        let event = serde_json::json!({"deliver": {"partition": partition.to_string()}});
        self.ask(event.to_string()).await.map_err(NotRung)
    }
}

#[cfg(feature = "posts")]
#[async_trait]
impl tidewheel_gateway::live::Invoke for Fanout {
    async fn invoke(
        &self,
        work: &tidewheel_gateway::live::Work,
    ) -> Result<(), tidewheel_gateway::live::NotInvoked> {
        use tidewheel_gateway::live::NotInvoked;
        let event = serde_json::to_string(work).map_err(|e| NotInvoked(e.to_string()))?;
        self.ask(event).await.map_err(NotInvoked)
    }
}

#[cfg(test)]
mod tests {
    use tidewheel_engine::Uuid;

    use super::*;
    use crate::test_server::Server;

    #[tokio::test]
    async fn ringing_is_an_asynchronous_invocation_that_names_the_partition() {
        let server =
            Server::answering(&["202 Accepted", "429 Too Many Requests", "429 Too Many Requests"])
                .await;
        let fanout = Fanout::new(&server.sdk(), "stack-fanout");
        let partition = PartitionId(Uuid::from_bytes([7; 16]));
        assert_eq!(fanout.ring(&partition).await, Ok(()));
        let request = server.requests().remove(0);
        assert!(
            request.starts_with("POST /2015-03-31/functions/stack-fanout/invocations"),
            "{request}"
        );
        assert!(request.to_lowercase().contains("x-amz-invocation-type: event"), "{request}");
        let event = format!("{{\"deliver\":{{\"partition\":\"{partition}\"}}}}");
        assert!(request.ends_with(&event), "{request}");
        let NotRung(why) = fanout.ring(&partition).await.unwrap_err();
        assert!(why.contains("429"), "{why}");
    }

    #[cfg(feature = "posts")]
    #[tokio::test]
    async fn work_goes_on_under_the_name_that_the_function_reads() {
        use tidewheel_gateway::live::{Invoke, Work};
        let server = Server::answering(&["202 Accepted"]).await;
        let fanout = Fanout::new(&server.sdk(), "f");
        fanout.invoke(&Work::Sweep {}).await.unwrap();
        assert!(server.requests()[0].ends_with(r#"{"sweep":{}}"#));
    }
}
