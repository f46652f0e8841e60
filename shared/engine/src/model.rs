//! What goes in and comes out of the engine: plain values, no behaviour.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{KvLost, KvOp, KvOutcome, PartitionId, StreamOptions, TimerOp, TimerOutcome, Uuid};

/// The partition of a push that names none.
pub const DEFAULT_PARTITION: &str = "Default";

/// The group of a pop that names none.
pub const QUEUE_MODE_GROUP: &str = "__QUEUE_MODE__";

/// The group that the tables' sealer is on every stream. It keeps its positions in the table's head; nobody pops for it.
pub const TABLE_GROUP: &str = "__table__";

/// A stream as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Its id. It never changes; a stream that is deleted and comes back has another.
    pub id: Uuid,
    /// Label for discovery.
    pub namespace: String,
    /// Label for discovery.
    pub task: String,
    /// Options in force.
    pub options: StreamOptions,
    /// When it was made, µs.
    pub created_us: i64,
}

/// A partition of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its id.
    pub id: PartitionId,
    /// The stream's name.
    pub stream: String,
    /// Its own name.
    pub name: String,
}

/// How far a partition reaches: offsets `floor..tail` can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The lowest offset that can be read.
    pub floor: u64,
    /// The offset that the next record gets.
    pub tail: u64,
}

/// What `configure` changes. Absent parts keep their value.
#[derive(Clone, Debug, Default)]
pub struct Configure {
    /// Label for discovery.
    pub namespace: Option<String>,
    /// Label for discovery.
    pub task: Option<String>,
    /// Options by name, as [`StreamOptions::merged`] takes them.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Starts from the defaults instead of the present options.
    pub replace: bool,
}

/// One record to push.
#[derive(Clone, Debug, Default)]
pub struct PushItem {
    /// The stream.
    pub stream: String,
    /// The partition; [`DEFAULT_PARTITION`] if empty.
    pub partition: String,
    /// The payload, exactly as it will come out again.
    pub payload: Bytes,
    /// The sender's id for deduplication.
    pub transaction_id: Option<String>,
    /// A key, for order and compaction.
    pub key: Option<String>,
    /// Headers, opaque.
    pub headers: Option<Bytes>,
}

/// What became of a pushed record.
#[derive(Clone, Debug, PartialEq)]
pub enum Pushed {
    /// Stored.
    Queued {
        /// The message's id.
        id: Uuid,
        /// Its offset.
        offset: u64,
    },
    /// Stored before under the same transaction id.
    Duplicate {
        /// The original's id; `None` when it cannot be read any more.
        id: Option<Uuid>,
        /// The original's offset; `None` when it cannot be found any more.
        offset: Option<u64>,
    },
    /// Not stored.
    Refused(crate::Error),
}

/// A record as it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its place in the partition, from 0.
    pub offset: u64,
    /// Served time, µs: never decreases along a partition.
    pub time_us: i64,
    /// The message's id.
    pub id: Uuid,
    /// The sender's id, or the message's id if the sender gave none.
    pub transaction_id: String,
    /// The key.
    pub key: Option<String>,
    /// Headers.
    pub headers: Option<Bytes>,
    /// The payload, exactly as it came.
    pub payload: Bytes,
}

/// A run of records.
#[derive(Clone, Debug)]
pub struct Read {
    /// The records, by offset, without a hole; empty when `from` is the tail.
    pub records: Vec<Record>,
    /// The offset after the last one.
    pub next: u64,
    /// How far the partition reached.
    pub extent: Extent,
}

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubscriptionMode {
    /// From the oldest record.
    All,
    /// From the moment of registration.
    #[default]
    New,
    /// From the first record of this time or later, µs.
    From(i64),
}

/// A group of a stream as it registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Where it starts on partitions that it has not come to.
    pub mode: SubscriptionMode,
    /// When it joined, µs.
    pub joined_us: i64,
    /// It is given only the newest record of a partition.
    pub conflation: bool,
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lease's token: the beginning of its id.
    pub token: String,
    /// The offset at which its batch ends.
    pub end: u64,
    /// When it lapses, µs.
    pub until_us: i64,
}

/// How far a group has come on a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Every offset below is done.
    pub committed: u64,
    /// The batch that is out.
    pub held: Option<Held>,
    /// Tries charged for the record at `committed`.
    pub failures: u32,
    /// Records done, in all.
    pub consumed: u64,
    /// When the last of them was done, µs; `None` if none was.
    pub consumed_us: Option<i64>,
}

impl Position {
    /// Records of the batch that is out.
    pub fn processing(&self) -> u64 {
        self.held.as_ref().map_or(0, |h| h.end.saturating_sub(self.committed))
    }
}

/// A group on a partition: `position` is `None` where it has not come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPosition {
    /// The group.
    pub group: Arc<GroupInfo>,
    /// How far it has come.
    pub position: Option<Position>,
}

/// A partition, how far it reaches, and how far groups have come on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The partition.
    pub partition: PartitionInfo,
    /// Offsets that can be read.
    pub extent: Extent,
    /// The served time of the last record, µs.
    pub last_us: i64,
    /// Bytes of the segments that can be read; `None` where that would cost a read of index pages.
    pub bytes: Option<u64>,
    /// Segments in the partition's head.
    pub segments: usize,
    /// The groups.
    pub groups: Vec<GroupPosition>,
}

/// Records of a partition by what is left to do with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Records that can be read.
    pub total: u64,
    /// Not done and not out with a consumer.
    pub pending: u64,
    /// Out with a consumer.
    pub processing: u64,
    /// Done.
    pub completed: u64,
}

impl std::ops::AddAssign for Backlog {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.pending += other.pending;
        self.processing += other.processing;
        self.completed += other.completed;
    }
}

impl Standing {
    /// Records that a group has yet to finish, those that are out with a consumer included. A group that has not come
    /// here owes all that can be read.
    pub fn owed(&self, position: Option<&Position>) -> u64 {
        let Extent { floor, tail } = self.extent;
        tail.saturating_sub(position.map_or(floor, |p| p.committed.max(floor)))
    }

    /// The first offset that a group has yet to finish; `None` if there is none.
    pub fn next_owed(&self, position: Option<&Position>) -> Option<u64> {
        Some(self.extent.tail - self.owed(position)).filter(|o| *o < self.extent.tail)
    }

    /// The group that owes most.
    pub fn slowest(&self) -> Option<&GroupPosition> {
        self.groups.iter().max_by_key(|g| self.owed(g.position.as_ref()))
    }

    /// The backlog as the slowest group sees it; without a group, everything is pending.
    pub fn backlog(&self) -> Backlog {
        let total = self.extent.tail - self.extent.floor;
        let Some(slowest) = self.slowest() else {
            return Backlog { total, pending: total, ..Backlog::default() };
        };
        let owed = self.owed(slowest.position.as_ref());
        let processing = slowest.position.as_ref().map_or(0, Position::processing).min(owed);
        Backlog { total, pending: owed - processing, processing, completed: total - owed }
    }
}

/// What to pop from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopTarget {
    /// One partition of a stream.
    Partition {
        /// The stream.
        stream: String,
        /// The partition's name.
        partition: String,
    },
    /// Any partition of a stream.
    Stream {
        /// The stream.
        stream: String,
    },
    /// Any partition of any stream with these labels; an absent label matches every stream.
    Labels {
        /// The namespace.
        namespace: Option<String>,
        /// The task.
        task: Option<String>,
    },
}

/// A pop.
#[derive(Clone, Debug)]
pub struct Pop {
    /// From where.
    pub target: PopTarget,
    /// For whom; [`QUEUE_MODE_GROUP`] if `None`.
    pub group: Option<String>,
    /// Messages at most, over the whole call.
    pub batch: usize,
    /// Partitions at most.
    pub partitions: usize,
    /// Waits this long for a message; `None` does not wait.
    pub wait: Option<Duration>,
    /// Lease, seconds; the stream's if `None`.
    pub lease_seconds: Option<i64>,
    /// Commits at delivery instead of leasing.
    pub auto_ack: bool,
    /// Where the group starts if it is new. Ignored by the queue-mode group, which starts at the oldest.
    pub mode: SubscriptionMode,
    /// Whether only the newest record of each partition is wanted. What a group says when it joins holds ever after;
    /// `None` takes that, and is no for a new group.
    pub conflation: Option<bool>,
}

/// A message as a consumer gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The record.
    pub record: Record,
    /// The partition it came from.
    pub partition: Arc<PartitionInfo>,
    /// How often it has been delivered, this time included.
    pub attempt: u32,
}

/// What a pop found. No messages means that nothing was found in time.
#[derive(Clone, Debug, Default)]
pub struct Popped {
    /// The lease over all of it; empty if nothing was found or it was committed at delivery.
    pub lease_id: String,
    /// The messages: by partition, and by offset within each.
    pub messages: Vec<Message>,
    /// Partitions they come from.
    pub partitions: usize,
    /// Each message is the newest of its partition, and stands for all that wait there.
    pub conflation: bool,
    /// The pop asked for another conflation than the group has; the group's was applied.
    pub conflation_conflict: bool,
}

/// What a consumer says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is done.
    Completed,
    /// It shall come again; nothing is charged.
    Retry,
    /// It failed: one of its tries is spent.
    Failed,
    /// It goes to the dead letters now.
    DeadLetter,
}

/// One acknowledgement.
#[derive(Clone, Debug)]
pub struct Ack {
    /// The message.
    pub transaction_id: String,
    /// Its partition, in text form.
    pub partition_id: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The lease it was delivered under; without one the cursor moves unfenced.
    pub lease_id: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

/// What became of an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acked {
    /// Why it was refused; `None` means that it was carried out.
    pub error: Option<String>,
    /// The lease on the partition has ended.
    pub lease_released: bool,
    /// The message is in the dead letters.
    pub dead_lettered: bool,
    /// It had been done before.
    pub noop: bool,
    /// Records that were done with it without having been delivered, because the group conflates.
    pub conflated: Option<u64>,
}

/// An extended lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Cursors that are still held.
    pub renewed: usize,
    /// When the first of them lapses, µs.
    pub expires_us: Option<i64>,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Its own id, opaque.
    pub id: String,
    /// The message.
    pub record: Record,
    /// Its partition.
    pub partition: PartitionInfo,
    /// The group that gave it up.
    pub group: String,
    /// Why.
    pub error: String,
    /// Failures that were charged before.
    pub failures: u32,
    /// When, µs.
    pub failed_us: i64,
}

/// What became of a dead letter that was to be replayed.
#[derive(Clone, Debug, PartialEq)]
pub enum Replayed {
    /// It is a record at the end of its partition again, and no dead letter any more.
    Pushed {
        /// The dead letter as it was.
        letter: Box<DeadLetter>,
        /// The transaction id of the record.
        transaction_id: String,
        /// The record's id.
        id: crate::Uuid,
        /// Its offset.
        offset: u64,
    },
    /// A record of this transaction id was pushed before; the dead letter stays.
    Duplicate {
        /// The transaction id.
        transaction_id: String,
    },
    /// There is no such dead letter.
    Missing,
}

/// A registered query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its id: the same for the same name.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// The hash of its chain of operators.
    pub config_hash: String,
    /// The stream it reads.
    pub source: String,
    /// The stream it writes, if any.
    pub sink: Option<String>,
}

/// What a registration did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The name was new.
    Fresh(Query),
    /// The same chain is registered; its state is kept.
    Same(Query),
    /// Another chain was registered; its state is gone.
    Reset(Query),
    /// Another chain is registered, and no reset was asked for.
    Mismatch(Query),
}

/// A filter on state rows. All parts must hold.
#[derive(Clone, Debug, Default)]
pub struct StateFilter {
    /// One of these keys; empty is no filter.
    pub keys: Vec<String>,
    /// Keys that begin with this, literally; empty is no filter.
    pub prefix: String,
    /// Rows whose value is an object with a number `windowEnd` at or below this.
    pub ripe_at_or_before: Option<f64>,
}

/// A row of a query's state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateRow {
    /// The key.
    pub key: String,
    /// The value: JSON text, exactly as it came.
    pub value: Bytes,
    /// When it was written, µs.
    pub updated_us: i64,
}

/// A change to a query's state.
#[derive(Clone, Debug, PartialEq)]
pub enum StateOp {
    /// Writes a row.
    Upsert {
        /// The key.
        key: String,
        /// JSON text.
        value: Bytes,
    },
    /// Deletes a row.
    Delete {
        /// The key.
        key: String,
    },
}

/// The source acknowledgement of a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct CycleAck {
    /// The lease the batch was popped under.
    pub lease_id: String,
    /// False gives the batch back.
    pub completed: bool,
    /// Messages processed. Matters only when the lease is kept.
    pub count: u64,
}

/// State writes, sink pushes and the source acknowledgement, all or nothing.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// The query.
    pub query_id: Uuid,
    /// The source partition.
    pub partition_id: PartitionId,
    /// The group that popped; `streams.<query name>` if `None`.
    pub group: Option<String>,
    /// State changes, in order.
    pub state_ops: Vec<StateOp>,
    /// Sink pushes, in order.
    pub push_items: Vec<PushItem>,
    /// The source acknowledgement; `None` moves no cursor and looks at no lease.
    pub ack: Option<CycleAck>,
    /// Ends the lease and acknowledges the whole leased batch; false moves the cursor by the count and keeps it.
    pub release_lease: bool,
}

/// What a cycle pushed to one sink partition.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkPushed {
    /// The stream.
    pub stream: String,
    /// The partition.
    pub partition: String,
    /// The offset of the first record; `None` if all were duplicates.
    pub base_offset: Option<u64>,
}

/// A cycle that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycled {
    /// The source stream.
    pub stream: String,
    /// State changes made.
    pub state_ops: usize,
    /// What was pushed, by sink partition, in the order of first mention.
    pub pushed: Vec<SinkPushed>,
    /// Messages acknowledged, and whether the lease ended; `None` without an acknowledgement.
    pub acked: Option<(u64, bool)>,
}

/// A partition on which a query has state.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePartition {
    /// The partition.
    pub info: PartitionInfo,
    /// When the state was last written, µs.
    pub updated_us: i64,
}

/// A page of partitions on which a query has state, by partition id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatePartitions {
    /// The partitions.
    pub partitions: Vec<StatePartition>,
    /// After which the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// What a claim of one partition came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStatus {
    /// The caller holds it, by this cursor.
    Claimed(crate::CursorId),
    /// Somebody holds it.
    Busy,
    /// Records wait for the group.
    Backlog,
    /// There is no such partition.
    Missing,
}

/// A partition that was to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedPartition {
    /// Its id as the caller named it.
    pub id: String,
    /// Its name, if it is known.
    pub name: String,
    /// What came of it.
    pub status: ClaimStatus,
}

/// Claims under one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The lease over all that were claimed; empty if none was.
    pub lease_id: String,
    /// Its length, seconds.
    pub lease_seconds: i64,
    /// The time of the claim, µs: windows that end before it may be closed.
    pub now_us: i64,
    /// When the lease lapses, µs.
    pub until_us: i64,
    /// Each partition, in the order of the request.
    pub partitions: Vec<ClaimedPartition>,
}

/// One step of a transaction.
#[derive(Clone, Debug)]
pub enum TransactionOp {
    /// Pushes records.
    Push(Vec<PushItem>),
    /// Acknowledges a message for a group ([`QUEUE_MODE_GROUP`] if `None`).
    Ack {
        /// The group.
        group: Option<String>,
        /// The acknowledgement.
        ack: Ack,
    },
}

/// What one step of a transaction did. A push gives one for each record.
#[derive(Clone, Debug, PartialEq)]
pub enum TransactionResult {
    /// A record was pushed, or was a repeat within the transaction.
    Pushed {
        /// The stream.
        stream: String,
        /// The transaction id.
        transaction_id: String,
        /// The message's id.
        id: Uuid,
        /// A repeat of an earlier record of the same transaction.
        repeat: bool,
    },
    /// A message was acknowledged.
    Acked {
        /// The transaction id.
        transaction_id: String,
        /// How.
        acked: Acked,
    },
    /// A key-value operation was carried out.
    Kv(KvOutcome),
    /// A timer was scheduled or cancelled.
    Timer(TimerOutcome),
}

/// What a transaction does besides pushing and acknowledging.
#[derive(Clone, Debug, Default)]
pub struct Riders {
    /// Key-value operations.
    pub kv: Vec<KvOp>,
    /// Timers.
    pub timers: Vec<TimerOp>,
}

/// Why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq)]
pub enum RolledBack {
    /// A record was pushed before under the same transaction id.
    Duplicate {
        /// The transaction id.
        transaction_id: String,
        /// Its stream.
        stream: String,
    },
    /// An acknowledgement could not be carried out.
    AckRejected {
        /// Why.
        error: String,
    },
    /// A required key-value operation did not apply.
    Precondition(KvLost),
    /// The request does not fit.
    BadRequest {
        /// Why.
        error: String,
    },
}

/// Counters since the process began, for metrics. Names are those of the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters(pub BTreeMap<&'static str, u64>);
