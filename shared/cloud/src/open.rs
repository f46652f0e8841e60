//! Opens the deployed store: one SDK client for each service, made once in a process's life.
//!
//! A function calls [`open`] and [`Opened::warm`] in its init, so that name resolution, the TLS handshake and the
//! credentials' first use are paid before the first request. Time-outs are for a caller who waits: long enough for a
//! slow store, short enough that a request whose store is gone is answered before its function's own limit.

use std::{sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use tidewheel_store::{DynamoDb, ReadError, Store, dynamodb::Options};

use crate::Environment;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one attempt of a request may take until its reply begins. A commit has one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for objects: a large blob takes a while to send.
const OBJECT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts of a request that may be repeated: reads, and blobs, whose names are nobody else's.
const ATTEMPTS: u32 = 3;

/// The deployed store and what further clients are made of.
#[derive(Clone)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same, by its own type: for its meter.
    pub dynamodb: DynamoDb,
    /// The client of the bucket, for files that are no blobs.
    pub s3: aws_sdk_s3::Client,
    /// Region, credentials, time-outs and retries: clients of other services are made of it.
    pub sdk: SdkConfig,
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No region is named.
    #[error("no region: set AWS_REGION")]
    NoRegion,
    /// The store cannot be reached, or not be read.
    #[error("the table or the bucket cannot be used: {0}")]
    Unusable(#[from] ReadError),
}

/// Makes the clients. Opens no connection yet: see [`Opened::warm`].
///
/// # Errors
/// [`OpenError::NoRegion`].
pub async fn open(environment: &Environment) -> Result<Opened, OpenError> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .build();
    let sdk = aws_config::defaults(BehaviorVersion::latest())
        .timeout_config(timeouts)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .load()
        .await;
    if sdk.region().is_none_or(|region| region.as_ref().is_empty()) {
        return Err(OpenError::NoRegion);
    }
    let object_timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(OBJECT_ATTEMPT_TIMEOUT)
        .build();
    let s3 = aws_sdk_s3::config::Builder::from(&sdk)
        .timeout_config(object_timeouts)
        .force_path_style(environment.path_style)
        .build();
    let s3 = aws_sdk_s3::Client::from_conf(s3);
    let options = Options::new(&environment.table, &environment.bucket);
    let dynamodb = DynamoDb::new(aws_sdk_dynamodb::Client::new(&sdk), s3.clone(), options);
    Ok(Opened { store: Arc::new(dynamodb.clone()), dynamodb, s3, sdk })
}

impl Opened {
    /// Opens the first connection to the table and to the bucket, side by side.
    ///
    /// # Errors
    /// [`OpenError::Unusable`] if one of them cannot be reached or the table cannot be read.
    pub async fn warm(&self) -> Result<(), OpenError> {
        Ok(self.dynamodb.warm().await?)
    }
}
