//! Decides a commit against the items as they are: the part of a commit that every local back end shares, so that
//! none of them can disagree with another on a condition, a limit or the order in which they are looked at.
//!
//! It never writes. The order is the cloud's: failed conditions come before faults that only the outcome shows.

use crate::{
    CommitError, Failed, Invalid, Item, limits,
    write::{Action, Write, check_item, item_bytes},
};

/// What a commit would leave behind.
pub(crate) struct Decided {
    /// For each write, the item afterwards; `None` within if there is none.
    pub(crate) after: Vec<Option<Item>>,
}

/// True if the cloud runs these writes as a transaction: several, or one that only checks.
pub(crate) fn is_transaction(writes: &[Write]) -> bool {
    writes.len() > 1 || writes.iter().any(|w| w.action == Action::Check)
}

/// Decides writes against their items; `current` stands in the order of `writes`.
pub(crate) fn decide(writes: &[Write], current: &[Option<&Item>]) -> Result<Decided, CommitError> {
    let mut failed = Vec::new();
    let mut invalid = None;
    let mut after = Vec::with_capacity(writes.len());
    let mut bytes = 0;
    for (at, (write, current)) in writes.iter().zip(current).enumerate() {
        match write.apply(*current) {
            Ok(None) => failed.push(Failed { write: at, current: current.cloned() }),
            Ok(Some(item)) => {
                let size = item.as_ref().map_or(Ok(0), |i| check_item(&write.key, i));
                match size {
                    Ok(new) => bytes += new.max(item_bytes(&write.key, *current)),
                    Err(e) => invalid = invalid.or(Some(e)),
                }
                after.push(item);
            }
            Err(e) => invalid = invalid.or(Some(e)),
        }
    }
    if !failed.is_empty() {
        return Err(CommitError::Conflict(failed));
    }
    if let Some(invalid) = invalid {
        return Err(invalid.into());
    }
    if is_transaction(writes) && bytes > limits::TRANSACTION_BYTES {
        return Err(Invalid::TransactionSize { bytes }.into());
    }
    Ok(Decided { after })
}
