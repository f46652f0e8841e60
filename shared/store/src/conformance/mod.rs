//! The conformance suite: what every back end must do, as one function per behaviour.
//!
//! A back end passes all of them unchanged; none knows which one it runs on. Every behaviour works under partition
//! keys and owners of its own, so that all of them may share one (fresh) store. They panic on the first answer that
//! is wrong, saying which.
//!
//! ```
//! mod memory {
//!     async fn make() -> (std::sync::Arc<dyn tidewheel_store::Store>, ()) {
//!         (std::sync::Arc::new(tidewheel_store::Memory::new()), ())
//!     }
//!     tidewheel_store::conformance_tests!(make().await); // one #[tokio::test] per behaviour
//! }
//! ```
//!
//! Left open, since the cloud decides it in ways of its own: conditions on an attribute of another type than they
//! are made for, sums beyond 64 bits, whether an update that only removes creates an item, and whether the bytes of a
//! transaction count items that it only makes grow ([`transaction_size_limit_of_updates`]: the local back ends do, which
//! is the stricter reading; the emulators of the cloud do not).

mod blobs;
mod bounds;
mod changes;
mod concurrent;
mod conditions;
mod reads;
mod transactions;

use std::sync::Arc;

pub use self::{
    blobs::*, bounds::*, changes::*, concurrent::*, conditions::*, reads::*, transactions::*,
};
use crate::{Commit, CommitError, Committed, Consistency, Failed, Item, Key, Store, Write};

/// The store under test.
pub type Subject = Arc<dyn Store>;

/// Makes one `#[tokio::test]` of every behaviour. The argument is an expression, evaluated inside each test, that
/// gives the store and a guard which is dropped after the test. What may
/// follow it are attributes that each test has besides.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr $(; $(#[$attribute:meta])+)?) => {
        $crate::conformance_tests! { @all [$($(#[$attribute])+)?] $make;
            // conditions
            every_condition_on_an_item every_condition_on_no_item conditions_are_all_needed
            conditions_guard_every_action
            // changes
            put_replaces_and_returns_the_image update_returns_the_image
            update_without_changes_creates every_change_on_an_item every_change_on_no_item
            sets_vanish_with_their_last_member changes_of_the_wrong_type_are_refused
            delete_removes_and_is_idempotent every_value_survives an_item_without_attributes_exists
            // transactions
            a_transaction_returns_no_image a_transaction_is_all_or_nothing
            a_conflict_names_every_failed_write a_check_changes_nothing
            a_single_check_is_a_transaction a_conflict_carries_the_current_item
            conflicts_come_before_faults
            // reads
            reads_see_what_was_answered batch_get_keeps_the_order query_reads_its_partition_key_only
            query_bounds_are_inclusive query_directions query_limits_and_pages query_stops_at_its_bytes
            query_of_nothing_is_empty keys_sort_by_bytes keys_of_the_largest_size
            // blobs
            blobs_of_every_size_survive blob_ranges a_missing_blob_is_none blobs_come_with_their_writes
            blobs_of_a_refused_commit_harm_nothing blobs_may_be_stored_again list_blobs_in_order
            list_blobs_goes_on list_blobs_of_one_owner delete_blobs_is_idempotent
            // limits
            item_size_limit item_size_limit_of_an_update transaction_count_limit
            transaction_size_limit no_item_twice no_attribute_twice key_limits attribute_limits
            operator_limit read_limits blob_limits no_writes
            // concurrency
            concurrent_appends_are_dense one_of_many_creates_wins transfers_keep_the_sum
            concurrent_transactions_tear_nothing
        }
    };
    (@all $attributes:tt $make:expr; $($name:ident)*) => {
        $( $crate::conformance_tests! { @one $attributes $make; $name } )*
    };
    (@one [$($attribute:tt)*] $make:expr; $name:ident) => {
            #[tokio::test]
            $($attribute)*
            async fn $name() {
                let (store, _guard) = $make;
                $crate::conformance::$name(store).await;
            }
    };
}

fn key(behaviour: &str, sk: &str) -> Key {
    Key::new(format!("conformance-{behaviour}"), sk)
}

/// Commits, repeating what the cloud says to repeat.
async fn commit(store: &Subject, commit: Commit) -> Result<Committed, CommitError> {
    loop {
        match store.commit(commit.clone()).await {
            Err(CommitError::Contended | CommitError::Throttled) => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

async fn write(store: &Subject, w: Write) -> Result<Option<Item>, CommitError> {
    commit(store, Commit::one(w)).await.map(|c| c.image)
}

async fn put(store: &Subject, key: &Key, item: Item) {
    write(store, Write::put(key.clone(), item)).await.expect("a put without conditions");
}

async fn get(store: &Subject, key: &Key) -> Option<Item> {
    store.get(key, Consistency::Strong).await.expect("a read")
}

fn conflict<T: std::fmt::Debug>(answer: Result<T, CommitError>, what: &str) -> Vec<Failed> {
    match answer {
        Err(CommitError::Conflict(failed)) => failed,
        other => panic!("{what}: a conflict was due, not {other:?}"),
    }
}

fn invalid<T: std::fmt::Debug>(answer: Result<T, CommitError>, what: &str) -> crate::Invalid {
    match answer {
        Err(CommitError::Invalid(invalid)) => invalid,
        other => panic!("{what}: a refusal was due, not {other:?}"),
    }
}
