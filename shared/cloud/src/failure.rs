//! What a failed call of a service says of itself, in a few words: no address, no header, no body.

use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};

/// The kind of failure, and the status and the service's word for it if there was a reply.
pub(crate) fn brief<E>(error: &SdkError<E, HttpResponse>) -> String
where
    E: aws_sdk_dynamodb::error::ProvideErrorMetadata,
{
    match error {
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            format!("{status} {}", service.err().code().unwrap_or("without a code"))
        }
        SdkError::TimeoutError(_) => "no reply in time".to_owned(),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => "no reply in time".to_owned(),
        SdkError::DispatchFailure(_) => "not reached".to_owned(),
        SdkError::ResponseError(_) => "a reply that cannot be read".to_owned(),
        _ => "a request that cannot be made".to_owned(),
    }
}
