//! The key layout of what follows the log through the managed gateway. Every partition key begins with `w`, which no
//! key of the engine does.
//!
//! | kind | pk | sk | attributes | conditions |
//! |---|---|---|---|---|
//! | connection | `wc#<connection>` | `connection` | `kind` `endpoint` `since_us` `expires` | exists |
//! | subscription | `wc#<connection>` | `s#<subscription>` | see [`super::rows::Subscription`] | absent; state and token equal |
//! | under way | `wf#<shard>` | `<connection>#<subscription>` | `conn` `sub` `expires`; `closing` `endpoint`: the connection is to be closed | none |
//! | cohort | `wp#<partition id>` | `cohort` | see [`super::rows::Cohort`] | absent; version, lease and position equal; position less than; sending lacking |
//! | member | `wp#<partition id>` | `m#<connection>#<subscription>` | see [`super::rows::Member`] | none |
//!
//! `expires` is in seconds since 1970: the store may delete the item some time after it. Nothing depends on when, or
//! whether, it does.
//!
//! What is persisted here must stay stable.

use tidewheel_engine::PartitionId;
use tidewheel_store::Key;

/// Partition keys over which the subscriptions under way are spread.
pub(crate) const UNDER_WAY_SHARDS: u8 = 4;

pub(crate) fn connection_pk(connection: &str) -> String {
    format!("wc#{connection}")
}

pub(crate) const CONNECTION: &str = "connection";

pub(crate) fn connection(connection: &str) -> Key {
    Key::new(connection_pk(connection), CONNECTION)
}

pub(crate) fn subscription(connection: &str, subscription: &str) -> Key {
    Key::new(connection_pk(connection), format!("s#{subscription}"))
}

pub(crate) fn under_way_pk(shard: u8) -> String {
    format!("wf#{shard}")
}

pub(crate) fn under_way(connection: &str, subscription: &str) -> Key {
    let sum = connection.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    Key::new(under_way_pk(sum % UNDER_WAY_SHARDS), format!("{connection}#{subscription}"))
}

pub(crate) fn cohort_pk(partition: &PartitionId) -> String {
    format!("wp#{partition}")
}

pub(crate) fn cohort(partition: &PartitionId) -> Key {
    Key::new(cohort_pk(partition), "cohort")
}

/// Begins the sort key of every member.
pub(crate) const MEMBERS: &str = "m#";

pub(crate) fn member(partition: &PartitionId, connection: &str, subscription: &str) -> Key {
    Key::new(cohort_pk(partition), format!("{MEMBERS}{connection}#{subscription}"))
}
