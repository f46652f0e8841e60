//! What a process of the deployed stack is told, as environment variables.
//!
//! | variable | needed | what it is |
//! |---|---|---|
//! | `TIDEWHEEL_TABLE` | yes | the table of heads and small blobs |
//! | `TIDEWHEEL_BUCKET` | yes | the bucket of large blobs and of the tables' files |
//! | `TIDEWHEEL_KMS_KEY` | no | the master key of streams that are encrypted at rest |
//! | `TIDEWHEEL_DOORBELL` | no | the fan-out function, which a push that finds a stream idle invokes |
//! | `TIDEWHEEL_POSTS_ENDPOINT` | no | where frames for the managed gateway's connections are posted |
//! | `TIDEWHEEL_QUEUE` | no | the queue that the function takes its work from |
//! | `TIDEWHEEL_GLUE_DATABASE` | no | the database of the data catalogue that mirrors the tables |
//! | `DEFAULT_SUBSCRIPTION_MODE` | no | where a new group begins: `new` (the default) or `all` |
//! | `TIDEWHEEL_POLL_EVERY` | no | seconds between two looks of a waiting pop |
//!
//! Region, credentials and endpoints are the SDK's own variables (`AWS_REGION`, `AWS_ENDPOINT_URL`, …); it reads them
//! itself. A variable that is set and empty counts as not set, because that is how a template leaves an option out.
//! Values are never logged: some of them name accounts.

use std::time::Duration;

use tidewheel_engine::{Settings, SubscriptionMode};

/// The table of heads and small blobs.
pub const TABLE: &str = "TIDEWHEEL_TABLE";
/// The bucket of large blobs and of the tables' files.
pub const BUCKET: &str = "TIDEWHEEL_BUCKET";
/// The master key of streams that are encrypted at rest.
pub const KMS_KEY: &str = "TIDEWHEEL_KMS_KEY";
/// The fan-out function.
pub const DOORBELL: &str = "TIDEWHEEL_DOORBELL";
/// Where frames for the managed gateway's connections are posted.
pub const POSTS_ENDPOINT: &str = "TIDEWHEEL_POSTS_ENDPOINT";
/// The queue that the function takes its work from.
pub const QUEUE: &str = "TIDEWHEEL_QUEUE";
/// The database of the data catalogue that mirrors the tables.
pub const GLUE_DATABASE: &str = "TIDEWHEEL_GLUE_DATABASE";
/// Where a new group begins.
pub const SUBSCRIPTION_MODE: &str = "DEFAULT_SUBSCRIPTION_MODE";
/// Seconds between two looks of a waiting pop.
pub const POLL_EVERY: &str = "TIDEWHEEL_POLL_EVERY";
/// The SDK's own: every service somewhere else. Read here because S3 elsewhere needs its buckets in the path.
const ENDPOINT: &str = "AWS_ENDPOINT_URL";
/// The SDK's own: S3 somewhere else.
const S3_ENDPOINT: &str = "AWS_ENDPOINT_URL_S3";

/// The longest time between two looks of a waiting pop.
const POLL_EVERY_MAX: f64 = 60.0;

/// What the process is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// The table of heads and small blobs.
    pub table: String,
    /// The bucket of large blobs and of the tables' files.
    pub bucket: String,
    /// The master key of streams that are encrypted at rest; without one no stream can be.
    pub kms_key: Option<String>,
    /// The fan-out function that a push rings.
    pub doorbell: Option<String>,
    /// Where frames for the managed gateway's connections are posted.
    pub posts_endpoint: Option<String>,
    /// The URL of the queue that the function takes its work from.
    pub queue: Option<String>,
    /// The database of the data catalogue that mirrors the tables; without one nothing mirrors them.
    pub glue_database: Option<String>,
    /// Where a new group begins when its first pop does not say.
    pub subscription_mode: SubscriptionMode,
    /// How often a waiting pop looks again.
    pub poll_every: Duration,
    /// True if S3 is somewhere else than in the cloud, where a bucket is a part of the path and not of the host.
    pub path_style: bool,
    /// Where S3 is, if it is somewhere else than in the cloud.
    pub s3_endpoint: Option<String>,
}

/// Why the environment is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable that is needed is not set, or empty.
    #[error("the environment variable {variable} is not set")]
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// A variable has a value that it cannot have.
    #[error("the environment variable {variable} must be {expected}")]
    Malformed {
        /// Its name.
        variable: &'static str,
        /// What it may be.
        expected: String,
    },
}

impl Environment {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`EnvironmentError`], naming the variable.
    pub fn from_env() -> Result<Self, EnvironmentError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads variables from wherever they are.
    ///
    /// # Errors
    /// [`EnvironmentError`], naming the variable.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let optional = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let needed = |variable: &'static str| {
            optional(variable).ok_or(EnvironmentError::Missing { variable })
        };
        let defaults = Settings::default();
        let subscription_mode = match optional(SUBSCRIPTION_MODE).as_deref() {
            None => defaults.default_subscription,
            Some("new") => SubscriptionMode::New,
            Some("all") => SubscriptionMode::All,
            Some(_) => {
                return Err(EnvironmentError::Malformed {
                    variable: SUBSCRIPTION_MODE,
                    expected: "`new` or `all`".to_owned(),
                });
            }
        };
        let poll_every = match optional(POLL_EVERY) {
            None => defaults.poll_every,
            Some(text) => match text.parse::<f64>() {
                Ok(seconds) if seconds > 0.0 && seconds <= POLL_EVERY_MAX => {
                    Duration::from_secs_f64(seconds)
                }
                _ => {
                    return Err(EnvironmentError::Malformed {
                        variable: POLL_EVERY,
                        expected: format!(
                            "a number of seconds, above 0 and up to {POLL_EVERY_MAX}"
                        ),
                    });
                }
            },
        };
        // What names one service wins over what names them all, as in the SDK.
        let s3_endpoint = optional(S3_ENDPOINT).or_else(|| optional(ENDPOINT));
        Ok(Self {
            table: needed(TABLE)?,
            bucket: needed(BUCKET)?,
            kms_key: optional(KMS_KEY),
            doorbell: optional(DOORBELL),
            posts_endpoint: optional(POSTS_ENDPOINT),
            queue: optional(QUEUE),
            glue_database: optional(GLUE_DATABASE),
            subscription_mode,
            poll_every,
            path_style: s3_endpoint.is_some(),
            s3_endpoint,
        })
    }

    /// The engine's settings that the environment decides. Keys are not among them.
    pub fn settings(&self) -> Settings {
        Settings {
            default_subscription: self.subscription_mode,
            poll_every: self.poll_every,
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        let set = |name: &str| variables.iter().find(|(n, _)| *n == name);
        Environment::from_lookup(|name| set(name).map(|(_, value)| (*value).to_owned()))
    }

    const NEEDED: [(&str, &str); 2] = [(TABLE, "heads"), (BUCKET, "blobs")];

    #[test]
    fn a_table_and_a_bucket_are_enough() {
        let environment = read(&NEEDED).unwrap();
        assert_eq!((environment.table.as_str(), environment.bucket.as_str()), ("heads", "blobs"));
        assert_eq!(environment.kms_key, None);
        assert_eq!(environment.subscription_mode, SubscriptionMode::New);
        assert_eq!(environment.settings().poll_every, Settings::default().poll_every);
        assert!(!environment.path_style);
    }

    #[test]
    fn what_is_missing_is_named_and_empty_is_missing() {
        for (variables, variable) in
            [(vec![], TABLE), (vec![NEEDED[0]], BUCKET), (vec![NEEDED[1], (TABLE, "")], TABLE)]
        {
            let error = read(&variables).unwrap_err();
            assert_eq!(error, EnvironmentError::Missing { variable });
            assert!(error.to_string().contains(variable));
        }
        let with = [&NEEDED[..], &[(KMS_KEY, ""), (POLL_EVERY, "")]].concat();
        assert_eq!(read(&with), read(&NEEDED));
    }

    #[test]
    fn every_option_is_taken() {
        let options = [
            (KMS_KEY, "key"),
            (DOORBELL, "fanout"),
            (POSTS_ENDPOINT, "https://posts"),
            (QUEUE, "https://queue"),
            (SUBSCRIPTION_MODE, "all"),
            (POLL_EVERY, "0.25"),
            (ENDPOINT, "http://127.0.0.1:2"),
            (S3_ENDPOINT, "http://127.0.0.1:1"),
        ];
        let environment = read(&[&NEEDED[..], &options].concat()).unwrap();
        assert_eq!(environment.kms_key.as_deref(), Some("key"));
        assert_eq!(environment.doorbell.as_deref(), Some("fanout"));
        assert_eq!(environment.posts_endpoint.as_deref(), Some("https://posts"));
        assert_eq!(environment.queue.as_deref(), Some("https://queue"));
        assert_eq!(environment.settings().default_subscription, SubscriptionMode::All);
        assert_eq!(environment.settings().poll_every, Duration::from_millis(250));
        assert!(environment.path_style);
        assert_eq!(environment.s3_endpoint.as_deref(), Some("http://127.0.0.1:1"));
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_the_variables_name() {
        for (variable, value) in [
            (SUBSCRIPTION_MODE, "All"),
            (POLL_EVERY, "0"),
            (POLL_EVERY, "-1"),
            (POLL_EVERY, "inf"),
            (POLL_EVERY, "NaN"),
            (POLL_EVERY, "soon"),
            (POLL_EVERY, "3600"),
        ] {
            let error = read(&[&NEEDED[..], &[(variable, value)]].concat()).unwrap_err();
            assert!(
                matches!(error, EnvironmentError::Malformed { variable: v, .. } if v == variable)
            );
        }
    }
}
