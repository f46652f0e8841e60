//! The key layout: every kind of head, its key, its attributes, and the conditions that are ever put on it.
//!
//! | kind | pk | sk | attributes | conditions |
//! |---|---|---|---|---|
//! | stream | `s#<stream>` | `stream` | `id` `namespace` `task` `options` (JSON) `created_us` `version` `groups` (set of group ids, simple) `partitioned`; of a declared stream `revision` `declared` (JSON) `book` `mark`, see [`crate::declare`] | absent; version equals; groups shorter than; partitioned, book lacking; revision, book equal; mark less than |
//! | group | `g#<stream id>` | `<group>` | `gid` `joined` (version at which it joined) `mode` `from_us` `joined_us` `conflation` `scan` (partitions up to here are visited; absent when all are) | absent; gid, mode, from_us equal; scan equals |
//! | stream list | `streams` | `<stream>` | none | none |
//! | gone streams | `gone` | `<stream id>` | `name` `groups`: what is still to be swept | none |
//! | partition list | `sp#<stream id>` | `<partition id>` | `name` | none |
//! | partition head | `p#<partition id>` | `head` | see [`crate::head`] | absent; tail, gen, asleep, epoch, marks equal; gen equals, ids lack, segs and ids shorter than, mark less than, asleep lacking |
//! | index page | `p#<partition id>` | `page#<base, 16 hex digits>` | see [`crate::page`] | absent |
//! | publisher's mark | `pm#<partition id>` | `<digest of the publisher's id>` | see [`crate::publisher`] | absent; mark equals |
//! | cursor | `c#<cursor id>` | `cursor` | see [`crate::cursor`] | absent; epoch equals; lease equals |
//! | ready entry | `r#<group id>` | `<partition id>` | `version` (chance) | version equals |
//! | ready entry of a live group | `r#6c697665<shard>..` | `<partition id>` | the same; see [`crate::live`] | the same |
//! | connections, followers | `w..` | of the `gateway` crate | of the `gateway` crate | of the `gateway` crate |
//! | dead letter | `d#<stream id>` | `<failed_us, 16 hex>.<partition id>.<offset, 16 hex>.<group id>` | see [`crate::dead_letter`] | exists |
//! | dead letter by message | `dx#<partition id>` | `<hash of the transaction id, 16 hex>#<dead letter>` | `listed` | none |
//! | number of dead letters | `dc#<stream id>` | `<partition id>#<group>` | `letters` | letters equals |
//! | query | `q#<query id>` | `query` | `name` `hash` `source` `sink` `created_us` `version` | absent; version equals |
//! | state head | `qs#<query id>#<shard>` | `<partition id>` | see [`crate::state`] | absent; seq equals |
//! | master keys | `encryption` | `<master key id>` | `since_us`: something may be sealed under it | absent |
//! | API key | `credentials` | `<key id>` | see [`crate::credential`] | absent; exists; token equals |
//! | registry of managed streams, operations, receipts | `control`, `co#<operation>`, `control-pending`, `cr#<principal>` | see [`crate::registry`] | the same | absent; exists; token, pending, status equal; pending less than |
//! | switches | `system` | `switches` | `push_paused` `pop_paused` | none |
//! | trace | `tr#<partition id>#<digest of the transaction id>` | `<made_us, 16 hex>#<trace id>` | see [`crate::trace`] | absent |
//! | trace by name | `tn#<name>` | `<made_us, 16 hex>#<trace id>` | `pid` `digest` | none |
//! | trace by day | `td#<day>` | `<made_us, 16 hex>#<trace id>` | `pid` `digest` `names` | none |
//! | trace names | `trace-names` | `<name>` | `traces` `messages` `last_us` | traces and messages equal |
//! | messages of a name | `tm#<name>` | `<partition id>#<digest>` | `traces` | absent; exists; traces equal |
//! | trace days | `trace-days` | `<day since 1970, 8 digits>` | `traces` | absent; traces less than |
//! | key-value entry | `kv#<namespace>` | `<key>` | see [`crate::kv`] | absent; version equals |
//! | namespaces | `kv-namespaces` | `<namespace>` | `listed` | none |
//! | timer | `ti#<stream>` | `<timer key>` | see [`crate::timer`] | absent; id equals |
//! | due timer | `due#<shard>` | `<due_us, 16 hex>#<digest of stream and timer key>` | `stream` `key` | none |
//! | table head | `t#<stream id>` | `table` | of the `tables` crate | of the `tables` crate |
//!
//! Blobs: a segment or a page's ids belong to the owner `<partition id, simple>`; deltas and snapshots of a state to
//! `<derived from query and partition, simple>`; a large dead letter's payload to its partition; the books of a declared stream to
//! `b<stream id, simple>`.
//!
//! What is persisted here must stay stable.

use tidewheel_store::Key;

use crate::{CursorId, GroupId, PartitionId, Uuid};

/// Shards of a query's state heads.
pub(crate) const STATE_SHARDS: u8 = 16;

pub(crate) const STREAMS: &str = "streams";

pub(crate) fn stream(name: &str) -> Key {
    Key::new(format!("s#{name}"), "stream")
}

pub(crate) fn groups_pk(stream: &Uuid) -> String {
    format!("g#{stream}")
}

pub(crate) fn group(stream: &Uuid, group: &str) -> Key {
    Key::new(groups_pk(stream), group)
}

pub(crate) fn stream_entry(name: &str) -> Key {
    Key::new(STREAMS, name)
}

pub(crate) const GONE: &str = "gone";

pub(crate) fn gone(stream: &Uuid) -> Key {
    Key::new(GONE, stream.to_string())
}

pub(crate) fn partitions_pk(stream: &Uuid) -> String {
    format!("sp#{stream}")
}

pub(crate) fn partition_entry(stream: &Uuid, partition: &PartitionId) -> Key {
    Key::new(partitions_pk(stream), partition.to_string())
}

pub(crate) fn partition_pk(partition: &PartitionId) -> String {
    format!("p#{partition}")
}

pub(crate) fn head(partition: &PartitionId) -> Key {
    Key::new(partition_pk(partition), "head")
}

pub(crate) fn page_sk(base: u64) -> String {
    format!("page#{base:016x}")
}

pub(crate) fn page(partition: &PartitionId, base: u64) -> Key {
    Key::new(partition_pk(partition), page_sk(base))
}

pub(crate) fn marks_pk(partition: &PartitionId) -> String {
    format!("pm#{partition}")
}

pub(crate) fn mark(partition: &PartitionId, publisher: &str) -> Key {
    Key::new(marks_pk(partition), publisher)
}

pub(crate) fn cursor(cursor: &CursorId) -> Key {
    Key::new(format!("c#{}", cursor.0), "cursor")
}

/// One key takes 500 idle-to-busy edges a second, and every pop that finds nothing reads it: one is right until a group
/// has more edges than that.
pub(crate) fn ready_pk(group: &GroupId) -> String {
    format!("r#{}", group.0.simple())
}

pub(crate) fn ready(group: &GroupId, partition: &PartitionId) -> Key {
    Key::new(ready_pk(group), partition.to_string())
}

pub(crate) fn dead_letters_pk(stream: &Uuid) -> String {
    format!("d#{stream}")
}

pub(crate) fn dead_letter(
    stream: &Uuid,
    failed_us: i64,
    partition: &PartitionId,
    offset: u64,
    group: &GroupId,
) -> Key {
    let group = group.0.simple();
    Key::new(dead_letters_pk(stream), format!("{failed_us:016x}.{partition}.{offset:016x}.{group}"))
}

pub(crate) fn letters_by_message_pk(partition: &PartitionId) -> String {
    format!("dx#{partition}")
}

pub(crate) fn letter_by_message(partition: &PartitionId, id_hash: u64, letter: &str) -> Key {
    Key::new(letters_by_message_pk(partition), format!("{id_hash:016x}#{letter}"))
}

pub(crate) fn letter_counts_pk(stream: &Uuid) -> String {
    format!("dc#{stream}")
}

pub(crate) fn letter_count(stream: &Uuid, partition: &PartitionId, group: &str) -> Key {
    Key::new(letter_counts_pk(stream), format!("{partition}#{group}"))
}

pub(crate) fn query(id: &Uuid) -> Key {
    Key::new(format!("q#{id}"), "query")
}

pub(crate) fn states_pk(query: &Uuid, shard: u8) -> String {
    format!("qs#{query}#{shard}")
}

pub(crate) fn state(query: &Uuid, partition: &PartitionId) -> Key {
    let shard = partition.0.as_bytes()[1] % STATE_SHARDS;
    Key::new(states_pk(query, shard), partition.to_string())
}

pub(crate) const MASTER_KEYS: &str = "encryption";

pub(crate) fn master_key(id: &str) -> Key {
    Key::new(MASTER_KEYS, id)
}

pub(crate) const CREDENTIALS: &str = "credentials";

pub(crate) fn credential(id: &str) -> Key {
    Key::new(CREDENTIALS, id)
}

pub(crate) const CONTROL: &str = "control";

/// Begins the sort keys of managed streams.
pub(crate) const MANAGED: &str = "stream#";

pub(crate) const PENDING: &str = "control-pending";

pub(crate) fn registry() -> Key {
    Key::new(CONTROL, "registry")
}

pub(crate) fn managed(name: &str) -> Key {
    Key::new(CONTROL, format!("{MANAGED}{name}"))
}

pub(crate) fn operation(id: &str) -> Key {
    Key::new(format!("co#{id}"), "operation")
}

pub(crate) fn pending(operation: &str) -> Key {
    Key::new(PENDING, operation)
}

pub(crate) fn receipt(principal: &str, key: &str) -> Key {
    Key::new(format!("cr#{principal}"), key)
}

pub(crate) fn switches() -> Key {
    Key::new("system", "switches")
}

pub(crate) const TRACE_NAMES: &str = "trace-names";

pub(crate) const TRACE_DAYS: &str = "trace-days";

pub(crate) fn traces_pk(partition: &PartitionId, digest: &str) -> String {
    format!("tr#{partition}#{digest}")
}

pub(crate) fn named_traces_pk(name: &str) -> String {
    format!("tn#{name}")
}

pub(crate) fn traces_of_day_pk(day: &str) -> String {
    format!("td#{day}")
}

pub(crate) fn trace_name(name: &str) -> Key {
    Key::new(TRACE_NAMES, name)
}

pub(crate) fn trace_day(day: &str) -> Key {
    Key::new(TRACE_DAYS, day)
}

pub(crate) fn named_message(name: &str, partition: &PartitionId, digest: &str) -> Key {
    Key::new(format!("tm#{name}"), format!("{partition}#{digest}"))
}

pub(crate) const KV_NAMESPACES: &str = "kv-namespaces";

pub(crate) fn kv_namespace(namespace: &str) -> Key {
    Key::new(KV_NAMESPACES, namespace)
}

pub(crate) fn kv_pk(namespace: &str) -> String {
    format!("kv#{namespace}")
}

pub(crate) fn kv(namespace: &str, key: &str) -> Key {
    Key::new(kv_pk(namespace), key)
}

/// Shards of the timers that are due: each takes 500 schedules a second.
pub(crate) const TIMER_SHARDS: u8 = 8;

pub(crate) fn timers_pk(stream: &str) -> String {
    format!("ti#{stream}")
}

pub(crate) fn timer(stream: &str, key: &str) -> Key {
    Key::new(timers_pk(stream), key)
}

pub(crate) fn due_pk(shard: u8) -> String {
    format!("due#{shard}")
}

pub(crate) fn due(due_us: i64, stream: &str, key: &str) -> Key {
    let digest = Uuid::derived(&[stream.as_bytes(), key.as_bytes()]);
    let shard = digest.as_bytes()[0] % TIMER_SHARDS;
    Key::new(due_pk(shard), format!("{:016x}#{}", due_us.max(0), digest.simple()))
}
