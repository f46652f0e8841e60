//! Master keys that stay in the key service (KMS).
//!
//! A data key is made by `GenerateDataKey` and unwrapped by `Decrypt`; the master key never leaves the service. The
//! engine asks once for many envelopes, so calls are few. Each carries an **encryption context**, which the service
//! authenticates with the key and writes into its log: what was wrapped here opens nowhere else, and a policy can
//! permit the key for this and nothing else. The context names no table, because a table that is restored from a backup
//! has another name and its rows must still open.
//!
//! The client repeats what may be repeated, as both calls may. No key, wrapped or not, is ever in an error or a log.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_kms::{
    Client,
    config::retry::RetryConfig,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    primitives::Blob,
    types::DataKeySpec,
};
use bytes::Bytes;
use tidewheel_engine::{DataKey, KeyError, KeyProvider, SecretKey, WrappedKey};
use tidewheel_store::Env;
use zeroize::Zeroizing;

use crate::{Environment, Opened};

/// The name of the encryption context's only entry; the template's policy asks for it.
pub const CONTEXT: &str = "application";

/// Its value.
pub const CONTEXT_VALUE: &str = "tidewheel";

/// Attempts of one call.
const ATTEMPTS: u32 = 3;

/// Data keys from the key service.
#[derive(Clone)]
pub struct KmsKeys {
    client: Client,
    key: String,
}

impl KmsKeys {
    /// Keys under this master key: its ARN, its id, or an alias. New data keys are wrapped by it; old ones are unwrapped
    /// by whatever key of the service wrapped them.
    pub fn new(sdk: &SdkConfig, key: &str) -> Self {
        let config = aws_sdk_kms::config::Builder::from(sdk)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .build();
        Self { client: Client::from_conf(config), key: key.to_owned() }
    }
}

impl fmt::Debug for KmsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KmsKeys").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The keys that a process's environment names, for the engine's settings.
pub fn keys(environment: &Environment, opened: &Opened) -> Option<Arc<dyn KeyProvider>> {
    let key = environment.kms_key.as_deref()?;
    Some(Arc::new(KmsKeys::new(&opened.sdk, key)))
}

#[async_trait]
impl KeyProvider for KmsKeys {
    async fn data_key(&self, _: &Env) -> Result<DataKey, KeyError> {
        let made = self
            .client
            .generate_data_key()
            .key_id(&self.key)
            .key_spec(DataKeySpec::Aes256)
            .encryption_context(CONTEXT, CONTEXT_VALUE)
            .send()
            .await
            .map_err(|e| failed("GenerateDataKey", &self.key, &e))?;
        // The service names the key by its ARN, also when it was asked for by an alias: the alias may move.
        let master = made.key_id.unwrap_or_else(|| self.key.clone());
        let (Some(secret), Some(wrapped)) = (made.plaintext, made.ciphertext_blob) else {
            return Err(KeyError::Unavailable("KMS made no data key".to_owned()));
        };
        let bytes = Bytes::from(wrapped.into_inner());
        Ok(DataKey { secret: secret_key(secret)?, wrapped: WrappedKey { master, bytes } })
    }

    async fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<SecretKey, KeyError> {
        let opened = self
            .client
            .decrypt()
            .key_id(&wrapped.master)
            .ciphertext_blob(Blob::new(wrapped.bytes.as_ref()))
            .encryption_context(CONTEXT, CONTEXT_VALUE)
            .send()
            .await
            .map_err(|e| failed("Decrypt", &wrapped.master, &e))?;
        let secret = opened.plaintext.ok_or_else(|| {
            KeyError::Unavailable("KMS decrypted a data key and did not send it".to_owned())
        })?;
        secret_key(secret)
    }
}

/// The key of 256 bits. What the SDK handed over is wiped.
fn secret_key(plaintext: Blob) -> Result<SecretKey, KeyError> {
    let bytes = Zeroizing::new(plaintext.into_inner());
    let bytes = <[u8; 32]>::try_from(bytes.as_slice())
        .map_err(|_| KeyError::Invalid("KMS's data key is not one of 256 bits".to_owned()))?;
    Ok(SecretKey::from_bytes(bytes))
}

/// What a failed call means for whoever wants to encrypt or decrypt.
fn failed<E>(call: &str, master: &str, error: &SdkError<E>) -> KeyError
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
{
    let text = || {
        // A service error tells enough; what failed before has its reason in its sources.
        match (error.code(), error.message()) {
            (Some(code), Some(message)) => format!("KMS {call} with `{master}`: {code}: {message}"),
            (Some(code), None) => format!("KMS {call} with `{master}`: {code}"),
            _ => format!("KMS {call} with `{master}`: {}", DisplayErrorContext(error)),
        }
    };
    match error.code() {
        Some("NotFoundException" | "InvalidArnException") => {
            KeyError::UnknownMaster(master.to_owned())
        }
        Some("InvalidCiphertextException" | "IncorrectKeyException") => {
            KeyError::DoesNotOpen(master.to_owned())
        }
        // The operator has to do something: repeating does not help.
        Some("AccessDeniedException" | "InvalidKeyUsageException" | "ValidationException") => {
            KeyError::Invalid(text())
        }
        _ => KeyError::Unavailable(text()),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_kms::{
        error::ErrorMetadata,
        operation::{
            decrypt::{DecryptError, DecryptInput, DecryptOutput},
            generate_data_key::{GenerateDataKeyError, GenerateDataKeyOutput},
        },
        types::error::{InvalidCiphertextException, NotFoundException},
    };
    use aws_smithy_mocks::{RuleMode, mock, mock_client};
    use tidewheel_engine::{Configure, Engine, Pop, PopTarget, PushItem, Pushed, Settings};

    use super::*;

    const ARN: &str = "arn:aws:kms:eu-north-1:123456789012:key/1234";

    fn keys(client: Client) -> KmsKeys {
        KmsKeys { client, key: "alias/tidewheel".to_owned() }
    }

    fn wrapped() -> WrappedKey {
        WrappedKey { master: ARN.to_owned(), bytes: Bytes::from_static(b"wrapped") }
    }

    fn in_context(context: Option<&std::collections::HashMap<String, String>>) -> bool {
        context.is_some_and(|c| c.len() == 1 && c.get(CONTEXT).is_some_and(|v| v == CONTEXT_VALUE))
    }

    fn decrypts(input: &DecryptInput) -> bool {
        input.key_id() == Some(ARN)
            && in_context(input.encryption_context())
            && input.ciphertext_blob().is_some_and(|blob| blob.as_ref() == b"wrapped")
    }

    #[tokio::test]
    async fn a_data_key_is_made_under_the_context_and_named_by_the_keys_arn() {
        let rule = mock!(Client::generate_data_key)
            .match_requests(|input| {
                input.key_id() == Some("alias/tidewheel")
                    && input.key_spec() == Some(&DataKeySpec::Aes256)
                    && in_context(input.encryption_context())
            })
            .then_output(|| {
                GenerateDataKeyOutput::builder()
                    .key_id(ARN)
                    .plaintext(Blob::new([7u8; 32]))
                    .ciphertext_blob(Blob::new(*b"wrapped"))
                    .build()
            });
        let keys = keys(mock_client!(aws_sdk_kms, RuleMode::Sequential, [&rule]));
        let made = keys.data_key(&Env::system()).await.unwrap();
        assert_eq!(made.wrapped, wrapped());
        assert_eq!(*made.secret.to_hex(), "07".repeat(32));
        assert_eq!(rule.num_calls(), 1);
    }

    #[tokio::test]
    async fn a_data_key_is_unwrapped_by_the_key_that_wrapped_it() {
        let rule = mock!(Client::decrypt).match_requests(decrypts).then_output(|| {
            DecryptOutput::builder().key_id(ARN).plaintext(Blob::new([9u8; 32])).build()
        });
        let keys = keys(mock_client!(aws_sdk_kms, RuleMode::Sequential, [&rule]));
        let secret = keys.unwrap_key(&wrapped()).await.unwrap();
        assert_eq!(*secret.to_hex(), "09".repeat(32));
    }

    #[tokio::test]
    async fn failures_say_whether_another_try_can_help_and_never_name_a_key() {
        let unmodelled = |code: &'static str| {
            move || {
                DecryptError::generic(ErrorMetadata::builder().code(code).message("why").build())
            }
        };
        let unknown = KeyError::UnknownMaster(ARN.to_owned());
        let closed = KeyError::DoesNotOpen(ARN.to_owned());
        let text = |code: &str| format!("KMS Decrypt with `{ARN}`: {code}: why");
        let cases: Vec<(Box<dyn Fn() -> DecryptError + Send + Sync>, KeyError)> = vec![
            (Box::new(not_found), unknown),
            (Box::new(does_not_open), closed),
            (
                Box::new(unmodelled("AccessDeniedException")),
                KeyError::Invalid(text("AccessDeniedException")),
            ),
            (
                Box::new(unmodelled("DisabledException")),
                KeyError::Unavailable(text("DisabledException")),
            ),
        ];
        for (error, expected) in cases {
            let rule = mock!(Client::decrypt).then_error(error);
            let keys = keys(mock_client!(aws_sdk_kms, RuleMode::MatchAny, [&rule]));
            assert_eq!(keys.unwrap_key(&wrapped()).await.unwrap_err(), expected);
        }
    }

    fn not_found() -> DecryptError {
        let meta = ErrorMetadata::builder().code("NotFoundException").build();
        DecryptError::NotFoundException(NotFoundException::builder().meta(meta).build())
    }

    fn does_not_open() -> DecryptError {
        let meta = ErrorMetadata::builder().code("InvalidCiphertextException").build();
        DecryptError::InvalidCiphertextException(
            InvalidCiphertextException::builder().meta(meta).build(),
        )
    }

    #[tokio::test]
    async fn a_key_of_another_length_is_refused() {
        let rule = mock!(Client::decrypt)
            .then_output(|| DecryptOutput::builder().plaintext(Blob::new([9u8; 16])).build());
        let keys = keys(mock_client!(aws_sdk_kms, RuleMode::Sequential, [&rule]));
        let error = keys.unwrap_key(&wrapped()).await.unwrap_err();
        assert_eq!(error, KeyError::Invalid("KMS's data key is not one of 256 bits".to_owned()));
    }

    /// A client whose service wraps by putting a word before the key, and then is out of reach.
    fn service(reachable: bool) -> Client {
        let make = mock!(Client::generate_data_key).then_output(|| {
            GenerateDataKeyOutput::builder()
                .key_id(ARN)
                .plaintext(Blob::new([7u8; 32]))
                .ciphertext_blob(Blob::new(*b"wrapped"))
                .build()
        });
        let refuse = mock!(Client::generate_data_key).then_error(|| {
            GenerateDataKeyError::generic(
                ErrorMetadata::builder().code("KMSInternalException").build(),
            )
        });
        let open = mock!(Client::decrypt).match_requests(decrypts).then_output(|| {
            DecryptOutput::builder().key_id(ARN).plaintext(Blob::new([7u8; 32])).build()
        });
        let make = if reachable { make } else { refuse };
        mock_client!(aws_sdk_kms, RuleMode::MatchAny, [&make, &open])
    }

    #[tokio::test(start_paused = true)]
    async fn an_encrypted_stream_is_written_and_read_by_two_processes_and_refused_without_the_service()
     {
        let env = Env::simulated(3, 1_790_000_000_000_000, 0);
        let store = std::sync::Arc::new(tidewheel_store::Memory::new());
        let process = |reachable| {
            let keys = std::sync::Arc::new(keys(service(reachable)));
            let settings = Settings { keys: Some(keys), ..Settings::default() };
            Engine::new(store.clone(), env.clone(), settings)
        };
        let item = || PushItem {
            stream: "secret".to_owned(),
            payload: Bytes::from_static(b"{\"pin\": 1234}"),
            ..PushItem::default()
        };
        let writer = process(true);
        let options = serde_json::json!({"encryptionEnabled": true});
        let configure =
            Configure { options: options.as_object().cloned().unwrap(), ..Configure::default() };
        writer.configure("secret", configure).await.unwrap();
        let pushed = writer.push(vec![item()]).await;
        assert!(matches!(pushed[0], Pushed::Queued { .. }), "{pushed:?}");

        let pop = Pop {
            target: PopTarget::Stream { stream: "secret".to_owned() },
            group: Some("g".to_owned()),
            batch: 10,
            partitions: 1,
            wait: None,
            lease_seconds: None,
            auto_ack: false,
            mode: tidewheel_engine::SubscriptionMode::All,
            conflation: None,
        };
        let popped = process(true).pop(pop).await.unwrap();
        assert_eq!(popped.messages[0].record.payload, "{\"pin\": 1234}");

        let refused = process(false).push(vec![item()]).await;
        assert!(matches!(&refused[0], Pushed::Refused(e) if e.is_transient()), "{refused:?}");
    }
}
