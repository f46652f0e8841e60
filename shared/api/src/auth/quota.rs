//! How much each key may ask for: two token buckets, of requests and of bytes.
//!
//! They are of this process. Where several serve one store, each lets through as much as the quota says, so that together
//! they let through that much times their number; a count that all shared would cost a write for each request.
//!
//! A bucket holds one second's worth. Bytes are taken as they come, so a large body may leave the bucket in debt: it is
//! served, and what comes after it waits until the debt is paid.

use std::{collections::HashMap, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use futures_util::StreamExt;
use parking_lot::Mutex;
use tidewheel_engine::Quota;

use super::{Caller, Refusal};

/// Keys whose buckets are remembered. Beyond it the full ones go: they are as good as new.
const REMEMBERED: usize = 4_096;

/// Refusals of nobody in particular that the audit log takes each second.
const REFUSALS: f64 = 10.0;

/// Tokens that come at a steady rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at_us: i64,
}

impl Bucket {
    fn full(rate: f64, now_us: i64) -> Self {
        Self { tokens: rate, at_us: now_us }
    }

    /// As it is now. A clock that goes back adds nothing.
    fn refill(&mut self, rate: f64, now_us: i64) {
        let passed = now_us.saturating_sub(self.at_us).max(0) as f64 / 1e6;
        self.tokens = (self.tokens + passed * rate).min(rate);
        self.at_us = now_us;
    }

    /// Seconds until there are this many.
    fn wait(&self, tokens: f64, rate: f64) -> u64 {
        ((tokens - self.tokens) / rate).ceil().clamp(1.0, 3600.0) as u64
    }
}

#[derive(Debug)]
struct Buckets {
    requests: Bucket,
    bytes: Bucket,
}

/// The buckets of all keys.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    of: Mutex<HashMap<String, Arc<Mutex<Buckets>>>>,
    refusals: Mutex<Option<Bucket>>,
}

impl Quotas {
    /// Lets a request through, and counts its body as it is read.
    pub(crate) fn admit(
        &self,
        now_us: i64,
        caller: &Caller,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Body, Refusal> {
        let Some(credential) = caller.credential() else { return Ok(body) };
        let quota = credential.quota;
        if quota == Quota::default() {
            return Ok(body);
        }
        let buckets = self.of(&credential.id, quota, now_us);
        let mut held = buckets.lock();
        if let Some(rate) = quota.requests_per_second {
            let rate = f64::from(rate);
            held.requests.refill(rate, now_us);
            if held.requests.tokens < 1.0 {
                let wait = held.requests.wait(1.0, rate);
                return Err(Refusal::over_quota("requests", wait));
            }
        }
        let counts_bytes = quota.bytes_per_second.is_some();
        if let Some(rate) = quota.bytes_per_second {
            let rate = rate as f64;
            held.bytes.refill(rate, now_us);
            if held.bytes.tokens <= 0.0 {
                let wait = held.bytes.wait(1.0, rate);
                return Err(Refusal::over_quota("bytes", wait));
            }
        }
        held.requests.tokens -= 1.0;
        if !counts_bytes {
            return Ok(body);
        }
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
        match declared.and_then(|text| text.parse::<u64>().ok()) {
            Some(bytes) => {
                held.bytes.tokens -= bytes as f64;
                Ok(body)
            }
            None => {
                drop(held);
                let counted = body.into_data_stream().inspect(move |chunk| {
                    let bytes = chunk.as_ref().map_or(0, bytes::Bytes::len);
                    buckets.lock().bytes.tokens -= bytes as f64;
                });
                Ok(Body::from_stream(counted))
            }
        }
    }

    fn of(&self, id: &str, quota: Quota, now_us: i64) -> Arc<Mutex<Buckets>> {
        let mut all = self.of.lock();
        if let Some(buckets) = all.get(id) {
            return Arc::clone(buckets);
        }
        if all.len() >= REMEMBERED {
            all.retain(|_, buckets| Arc::strong_count(buckets) > 1);
        }
        let rate = |n: Option<f64>| Bucket::full(n.unwrap_or(0.0), now_us);
        let buckets = Arc::new(Mutex::new(Buckets {
            requests: rate(quota.requests_per_second.map(f64::from)),
            bytes: rate(quota.bytes_per_second.map(|n| n as f64)),
        }));
        all.insert(id.to_owned(), Arc::clone(&buckets));
        buckets
    }

    /// True if one more refusal of nobody in particular may be written down.
    pub(crate) fn admit_refusal(&self, now_us: i64) -> bool {
        let mut bucket = self.refusals.lock();
        let bucket = bucket.get_or_insert_with(|| Bucket::full(REFUSALS, now_us));
        bucket.refill(REFUSALS, now_us);
        let admitted = bucket.tokens >= 1.0;
        if admitted {
            bucket.tokens -= 1.0;
        }
        admitted
    }
}
