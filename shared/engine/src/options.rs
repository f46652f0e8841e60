//! A stream's options: what a user may set, the defaults, and how a new setting joins the old.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, limits};

/// Options of a stream. Times are in the unit that the field's name or comment states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamOptions {
    /// Lease of a pop that names none, seconds.
    pub lease_time: i64,
    /// Explicit `failed` acknowledgements for one position before it is dead-lettered or dropped.
    pub retry_limit: i64,
    /// Stored and returned, milliseconds.
    pub retry_delay: i64,
    /// Stored and returned.
    pub priority: i64,
    /// Stored and returned.
    pub max_size: i64,
    /// Stored and returned, seconds.
    pub ttl: i64,
    /// A record is invisible until it is this old, seconds.
    pub delayed_processing: i64,
    /// Holds a partition back so that batches grow, seconds.
    pub window_buffer: i64,
    /// With the next: both must be false for poison to be dropped.
    pub dead_letter_queue: bool,
    /// See [`StreamOptions::dead_letter_queue`].
    pub dlq_after_max_retries: bool,
    /// Switches the two retentions below on.
    pub retention_enabled: bool,
    /// Records older than this may be deleted, consumed or not, seconds; 0 keeps them.
    pub retention_seconds: i64,
    /// Records that every group has consumed and that are older than this may be deleted, seconds; 0 keeps them.
    pub completed_retention_seconds: i64,
    /// Records older than this are deleted even when leased, seconds; 0 keeps them.
    pub max_wait_time_seconds: i64,
    /// Payloads are encrypted at rest.
    pub encryption_enabled: bool,
    /// How long an under-full waiting pop may linger, milliseconds, 0 to 60,000.
    pub min_pop_wait_time: i64,
    /// Deduplication window for transaction ids, seconds; 0 switches it off.
    pub dedup_window_seconds: i64,
    /// Stored and returned.
    pub retention_sink_hold: String,
    /// Stored and returned, seconds.
    pub retention_sink_hold_max_seconds: i64,
}

impl Default for StreamOptions {
    /// The options of a stream that a push creates.
    fn default() -> Self {
        Self {
            lease_time: limits::LEASE_SECONDS,
            retry_limit: 3,
            retry_delay: 1000,
            priority: 0,
            max_size: 0,
            ttl: 3600,
            delayed_processing: 0,
            window_buffer: 0,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            retention_enabled: false,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            max_wait_time_seconds: 0,
            encryption_enabled: false,
            min_pop_wait_time: 0,
            dedup_window_seconds: limits::DEDUP_WINDOW_SECONDS,
            retention_sink_hold: String::new(),
            retention_sink_hold_max_seconds: 604_800,
        }
    }
}

impl StreamOptions {
    /// The options of a stream that `configure` creates.
    pub fn configured() -> Self {
        Self { lease_time: limits::CONFIGURED_LEASE_SECONDS, ..Self::default() }
    }

    /// Merges a patch: an absent option keeps its value, `null` restores the default, a value sets it. Unknown
    /// options are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the option, if a value has the wrong type.
    pub fn merged(&self, patch: &Map<String, Value>) -> Result<Self, Error> {
        let object = |options: &Self| match serde_json::to_value(options) {
            Ok(Value::Object(map)) => Ok(map),
            _ => Err(Error::Invalid("options are no object".to_owned())),
        };
        let mut merged = object(self)?;
        let defaults = object(&Self::configured())?;
        for (name, value) in patch {
            let Some(default) = defaults.get(name) else { continue };
            let value = if value.is_null() { default } else { value };
            if std::mem::discriminant(value) != std::mem::discriminant(default)
                || value.is_number() && value.as_i64().is_none()
            {
                let kind = match default {
                    Value::Bool(_) => "true or false",
                    Value::Number(_) => "a whole number",
                    _ => "a text",
                };
                return Err(Error::Invalid(format!("option `{name}` must be {kind}, not {value}")));
            }
            merged.insert(name.clone(), value.clone());
        }
        let mut options: Self = serde_json::from_value(Value::Object(merged))
            .map_err(|e| Error::Invalid(format!("options: {e}")))?;
        options.min_pop_wait_time = options.min_pop_wait_time.clamp(0, 60_000);
        options.dedup_window_seconds = options.dedup_window_seconds.max(0);
        Ok(options)
    }

    /// True if records of the stream are ever deleted for their age.
    pub fn expires(&self) -> bool {
        let timed = self.retention_seconds > 0 || self.completed_retention_seconds > 0;
        self.retention_enabled && timed || self.max_wait_time_seconds > 0
    }

    /// The lease of a pop, seconds.
    pub(crate) fn lease_seconds(&self, asked: Option<i64>) -> i64 {
        let seconds = match asked {
            Some(s) if s > 0 => s,
            _ if self.lease_time > 0 => self.lease_time,
            _ => limits::LEASE_SECONDS,
        };
        seconds.min(limits::LEASE_SECONDS_MAX)
    }

    /// True if poison goes to the dead letters rather than being dropped.
    pub(crate) fn dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }
}
