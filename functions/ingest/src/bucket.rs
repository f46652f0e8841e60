//! The services that objects come from and positions go to.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use bytes::Bytes;

use crate::source::Object;

/// Why an object, or a part of it, was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BucketError {
    /// It is not there any more, or another is there under its name: that one has an event of its own.
    #[error("the object is gone or was replaced")]
    Gone,
    /// It could not be read now.
    #[error("{0}")]
    Unavailable(String),
}

/// Where objects are read.
#[async_trait]
pub(crate) trait Bucket: Send + Sync {
    /// An object's bytes.
    async fn size(&self, object: &Object) -> Result<u64, BucketError>;

    /// A part of an object, from a byte on, no longer than asked for and shorter at its end.
    async fn read(&self, object: &Object, from: u64, bytes: u64) -> Result<Bytes, BucketError>;
}

/// Where another invocation finds how far this one came.
#[async_trait]
pub(crate) trait Positions: Send + Sync {
    /// Leaves a position.
    ///
    /// # Errors
    /// Why it was not taken.
    async fn leave(&self, object: &Object) -> Result<(), String>;
}

/// Objects of S3. What may be repeated, the client repeats.
pub(crate) struct S3(aws_sdk_s3::Client);

impl S3 {
    pub(crate) fn new(client: aws_sdk_s3::Client) -> Self {
        Self(client)
    }
}

#[async_trait]
impl Bucket for S3 {
    async fn size(&self, object: &Object) -> Result<u64, BucketError> {
        let mut ask = self.0.head_object().bucket(&object.bucket).key(&object.key);
        ask = match &object.version {
            Some(version) => ask.version_id(version),
            None if object.etag.is_empty() => ask,
            None => ask.if_match(&object.etag),
        };
        let found = ask.send().await.map_err(|e| failed(&e))?;
        Ok(found.content_length().and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
    }

    async fn read(&self, object: &Object, from: u64, bytes: u64) -> Result<Bytes, BucketError> {
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let range = format!("bytes={from}-{}", from + bytes - 1);
        let mut ask = self.0.get_object().bucket(&object.bucket).key(&object.key).range(range);
        ask = match &object.version {
            Some(version) => ask.version_id(version),
            None if object.etag.is_empty() => ask,
            None => ask.if_match(&object.etag),
        };
        let found = ask.send().await.map_err(|e| failed(&e))?;
        let body = found.body.collect().await;
        Ok(body.map_err(|e| BucketError::Unavailable(e.to_string()))?.into_bytes())
    }
}

fn failed<E>(error: &SdkError<E, aws_sdk_s3::config::http::HttpResponse>) -> BucketError
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
{
    // A HEAD has no body, so only the status tells.
    let status = error.raw_response().map(|r| r.status().as_u16());
    match (status, error.code()) {
        (Some(404 | 412), _) | (_, Some("NoSuchKey" | "NoSuchVersion" | "PreconditionFailed")) => {
            BucketError::Gone
        }
        _ => BucketError::Unavailable(format!("S3: {}", DisplayErrorContext(error))),
    }
}

/// Positions as messages of the function's own queue.
pub(crate) struct Sqs {
    client: aws_sdk_sqs::Client,
    url: String,
}

impl Sqs {
    pub(crate) fn new(sdk: &SdkConfig, url: &str) -> Self {
        Self { client: aws_sdk_sqs::Client::new(sdk), url: url.to_owned() }
    }
}

#[async_trait]
impl Positions for Sqs {
    async fn leave(&self, object: &Object) -> Result<(), String> {
        let sent =
            self.client.send_message().queue_url(&self.url).message_body(object.to_message());
        match sent.send().await {
            Ok(_) => Ok(()),
            Err(e) => Err(format!("SQS: {}", DisplayErrorContext(&e))),
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::{
        error::ErrorMetadata,
        operation::{
            get_object::{GetObjectError, GetObjectOutput},
            head_object::HeadObjectOutput,
        },
        primitives::ByteStream,
    };
    use aws_smithy_mocks::{RuleMode, mock, mock_client};

    use super::*;
    use crate::source::Position;

    fn object(version: Option<&str>) -> Object {
        Object {
            bucket: "b".to_owned(),
            key: "k".to_owned(),
            etag: "tag".to_owned(),
            version: version.map(str::to_owned),
            position: Position::default(),
        }
    }

    #[tokio::test]
    async fn a_part_is_asked_for_by_its_range_and_the_objects_tag() {
        let head = mock!(aws_sdk_s3::Client::head_object)
            .match_requests(|r| r.if_match() == Some("tag"))
            .then_output(|| HeadObjectOutput::builder().content_length(12).build());
        let get = mock!(aws_sdk_s3::Client::get_object)
            .match_requests(|r| r.range() == Some("bytes=3-7") && r.if_match() == Some("tag"))
            .then_output(|| {
                GetObjectOutput::builder().body(ByteStream::from_static(b"parts")).build()
            });
        let s3 = S3::new(mock_client!(aws_sdk_s3, RuleMode::MatchAny, [&head, &get]));
        assert_eq!(s3.size(&object(None)).await, Ok(12));
        assert_eq!(s3.read(&object(None), 3, 5).await, Ok(Bytes::from_static(b"parts")));
    }

    #[tokio::test]
    async fn a_version_is_asked_for_by_its_id_and_what_was_replaced_is_gone() {
        let get = mock!(aws_sdk_s3::Client::get_object)
            .match_requests(|r| r.version_id() == Some("v") && r.if_match().is_none())
            .then_error(|| {
                GetObjectError::generic(ErrorMetadata::builder().code("NoSuchVersion").build())
            });
        let s3 = S3::new(mock_client!(aws_sdk_s3, RuleMode::MatchAny, [&get]));
        assert_eq!(s3.read(&object(Some("v")), 0, 1).await, Err(BucketError::Gone));
    }

    #[tokio::test]
    async fn what_fails_otherwise_may_be_tried_again() {
        let get = mock!(aws_sdk_s3::Client::get_object).then_error(|| {
            GetObjectError::generic(ErrorMetadata::builder().code("AccessDenied").build())
        });
        let s3 = S3::new(mock_client!(aws_sdk_s3, RuleMode::MatchAny, [&get]));
        let failed = s3.read(&object(None), 0, 1).await;
        assert!(
            matches!(&failed, Err(BucketError::Unavailable(why)) if why.contains("AccessDenied"))
        );
    }
}
