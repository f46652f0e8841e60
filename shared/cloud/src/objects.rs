//! The bucket as an object store: where the files of tables are.
//!
//! It is the same bucket as the store's, by the same credentials: the SDK finds them (environment, container, instance,
//! profile) and renews them, and every request asks the SDK. Requests go over TLS, but to an endpoint that the
//! environment names, which is an emulator's or a private one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_s3::config::{ProvideCredentials, SharedCredentialsProvider};
use object_store::{
    BackoffConfig, CredentialProvider, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AwsCredential},
};

use crate::{Environment, Opened};

/// Attempts after the first: files have names of their own, and the one that has not is written conditionally.
const RETRIES: usize = 4;
/// How long a request may be repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between two attempts.
const BACKOFF: Duration = Duration::from_secs(2);

/// Why the bucket cannot be used as an object store.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The SDK knows no credentials.
    #[error("no credentials: neither the environment, nor a profile, nor the machine gives any")]
    NoCredentials,
    /// The bucket's name or the endpoint is none.
    #[error("bucket `{bucket}`: {source}")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// Why.
        source: object_store::Error,
    },
}

/// The bucket as an object store. Opens no connection yet.
///
/// # Errors
/// See [`ObjectsError`].
pub fn objects(environment: &Environment, opened: &Opened) -> Result<AmazonS3, ObjectsError> {
    let credentials = opened.sdk.credentials_provider().ok_or(ObjectsError::NoCredentials)?;
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&environment.bucket)
        .with_credentials(Arc::new(SdkCredentials(credentials)))
        .with_virtual_hosted_style_request(!environment.path_style)
        .with_retry(RetryConfig {
            backoff: BackoffConfig { max_backoff: BACKOFF, ..BackoffConfig::default() },
            max_retries: RETRIES,
            retry_timeout: RETRY_TIMEOUT,
        });
    if let Some(region) = opened.sdk.region() {
        builder = builder.with_region(region.as_ref());
    }
    if let Some(endpoint) = &environment.s3_endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    let bucket = || environment.bucket.clone();
    builder.build().map_err(|source| ObjectsError::Bucket { bucket: bucket(), source })
}

/// The bucket's place as readers of tables name it.
pub fn objects_uri(environment: &Environment) -> String {
    format!("s3://{}", environment.bucket)
}

/// The SDK's credentials for the object store.
#[derive(Debug)]
struct SdkCredentials(SharedCredentialsProvider);

#[async_trait]
impl CredentialProvider for SdkCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let found = self.0.provide_credentials().await;
        let found =
            found.map_err(|e| object_store::Error::Generic { store: "S3", source: e.into() })?;
        Ok(Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        }))
    }
}
