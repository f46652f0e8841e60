//! Looks, before anything is served, whether the deployed store is there and may be used.
//!
//! What a person got wrong is told apart here: no credentials, another region, a name, a permission. Two requests, and
//! nothing is written. Whatever is wrong later is the store's own failure, and is answered as such.

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_s3::{
    config::ProvideCredentials,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
};

use crate::{Environment, Opened};

/// Why the deployed store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// No credentials are found where the SDK looks for them.
    #[error(
        "no credentials are found in the environment, in a profile or on this machine: \
         set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
    )]
    NoCredentials,
    /// The table does not exist, or exists in another region.
    #[error(
        "table `{table}` does not exist in region `{region}`: it is made by the template in infra/, \
         and AWS_REGION must be the region that it was deployed to"
    )]
    NoTable {
        /// The table.
        table: String,
        /// Where it was looked for.
        region: String,
    },
    /// The bucket does not exist.
    #[error("bucket `{bucket}` does not exist: it is made by the template in infra/")]
    NoBucket {
        /// The bucket.
        bucket: String,
    },
    /// The bucket exists in another region.
    #[error(
        "bucket `{bucket}` is not in region `{region}`: set AWS_REGION to where it was deployed"
    )]
    OtherRegion {
        /// The bucket.
        bucket: String,
        /// Where it was looked for.
        region: String,
    },
    /// The credentials do not permit it.
    #[error("the credentials may not use {what}: {code}")]
    Denied {
        /// The table or the bucket.
        what: String,
        /// The service's word for it.
        code: String,
    },
    /// Nobody answers, or not as the service does.
    #[error("{what} cannot be reached: {why}")]
    Unreachable {
        /// The table or the bucket.
        what: String,
        /// Why.
        why: String,
    },
}

/// Looks whether table and bucket are there and may be read.
///
/// # Errors
/// See [`Unusable`].
pub async fn check(environment: &Environment, opened: &Opened) -> Result<(), Unusable> {
    let provider = opened.sdk.credentials_provider().ok_or(Unusable::NoCredentials)?;
    if let Err(error) = provider.provide_credentials().await {
        tracing::debug!(error = %DisplayErrorContext(&error), "no credentials");
        return Err(Unusable::NoCredentials);
    }
    check_table(environment, opened).await?;
    check_bucket(environment, opened).await
}

fn region(opened: &Opened) -> String {
    opened.sdk.region().map(|region| region.to_string()).unwrap_or_default()
}

async fn check_table(environment: &Environment, opened: &Opened) -> Result<(), Unusable> {
    let table = || environment.table.clone();
    let what = || format!("table `{}`", environment.table);
    let nobody = || AttributeValue::S("nobody".to_owned());
    let get = aws_sdk_dynamodb::Client::new(&opened.sdk).get_item().table_name(table());
    let Err(error) = get.key("pk", nobody()).key("sk", nobody()).send().await else {
        return Ok(());
    };
    let Some(code) = code(&error) else {
        return Err(Unusable::Unreachable { what: what(), why: display(&error) });
    };
    Err(match code.as_str() {
        "ResourceNotFoundException" => Unusable::NoTable { table: table(), region: region(opened) },
        _ if denies(&code) => Unusable::Denied { what: what(), code },
        _ => Unusable::Unreachable { what: what(), why: display(&error) },
    })
}

async fn check_bucket(environment: &Environment, opened: &Opened) -> Result<(), Unusable> {
    let bucket = || environment.bucket.clone();
    let what = || format!("bucket `{}`", environment.bucket);
    // The answer to HEAD has no body, so that only its status says what is wrong.
    let Err(error) = opened.s3.head_bucket().bucket(bucket()).send().await else { return Ok(()) };
    Err(match error.raw_response().map(|response| response.status().as_u16()) {
        Some(404) => Unusable::NoBucket { bucket: bucket() },
        Some(301 | 400) => Unusable::OtherRegion { bucket: bucket(), region: region(opened) },
        Some(status @ (401 | 403)) => {
            Unusable::Denied { what: what(), code: format!("status {status}") }
        }
        _ => Unusable::Unreachable { what: what(), why: display(&error) },
    })
}

/// The service's code, if the service answered.
fn code<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> Option<String> {
    error.as_service_error().and_then(ProvideErrorMetadata::code).map(str::to_owned)
}

fn denies(code: &str) -> bool {
    [
        "AccessDeniedException",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "ExpiredTokenException",
        "MissingAuthenticationTokenException",
    ]
    .contains(&code)
}

fn display(error: &(impl std::error::Error + 'static)) -> String {
    DisplayErrorContext(error).to_string()
}
