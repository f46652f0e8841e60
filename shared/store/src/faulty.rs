//! A store that breaks by a seed: what the cloud does on a bad day, on purpose and repeatably.
//!
//! Wraps any back end. Every call may fail before it does anything, be throttled, do its work and lose the reply,
//! lose the request, be slow, or, the worst, **arrive late**: the caller is told that the outcome is unknown, and the
//! commit happens some calls later, whatever has happened in between (a function frozen and thawed). A commit has
//! its blobs and its writes made in two steps, as the cloud makes them, so a fault can fall between the two.
//!
//! It never lies: a conflict is true when it is reported, an item was once as it is shown, and only eventually
//! consistent reads are ever old. All chance comes from [`Env`]; one call draws the same numbers whatever they are,
//! so on one thread a seed is a history.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    BlobName, Commit, CommitError, Committed, Consistency, Env, Item, Key, Page, Query, ReadError,
    Store, Write,
};

/// How likely each fault is, in parts of one. Of the faults of a commit at most one strikes; their sum should not
/// exceed 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// A commit fails with [`CommitError::Unavailable`] before its writes.
    pub refuse: f64,
    /// A commit is throttled.
    pub throttle: f64,
    /// A commit meets another transaction.
    pub contend: f64,
    /// A commit happens, or is refused by its conditions, and the reply is lost.
    pub lose_reply: f64,
    /// A commit is lost on its way, and the caller cannot tell.
    pub lose_request: f64,
    /// A commit's outcome is unknown, and it happens some calls later.
    pub late: f64,
    /// Calls, at most, after which a late commit happens.
    pub late_calls: u64,
    /// A read fails with [`ReadError::Unavailable`].
    pub refuse_read: f64,
    /// A read is throttled.
    pub throttle_read: f64,
    /// An eventually consistent read shows an older item.
    pub stale_read: f64,
    /// A call takes long, before or after its work, and then ends as it would have.
    pub slow: f64,
    /// How long a slow call takes at most.
    pub slow_for: Duration,
    /// How long every other call takes: at least, and less than. Nothing by default: then no call waits.
    pub latency: Range<Duration>,
}

impl Plan {
    /// No faults: the wrapper only counts.
    pub fn none() -> Self {
        Self {
            refuse: 0.0,
            throttle: 0.0,
            contend: 0.0,
            lose_reply: 0.0,
            lose_request: 0.0,
            late: 0.0,
            late_calls: 1,
            refuse_read: 0.0,
            throttle_read: 0.0,
            stale_read: 0.0,
            slow: 0.0,
            slow_for: Duration::ZERO,
            latency: Duration::ZERO..Duration::ZERO,
        }
    }

    /// No faults, but time passes: a few milliseconds for every call.
    pub fn calm() -> Self {
        Self { latency: Duration::from_millis(1)..Duration::from_millis(10), ..Self::none() }
    }

    /// Every fault, each often: about one commit in four does not go well.
    pub fn stormy() -> Self {
        Self {
            refuse: 0.04,
            throttle: 0.04,
            contend: 0.04,
            lose_reply: 0.05,
            lose_request: 0.03,
            late: 0.04,
            late_calls: 60,
            refuse_read: 0.02,
            throttle_read: 0.02,
            stale_read: 0.25,
            slow: 0.02,
            slow_for: Duration::from_secs(120),
            ..Self::calm()
        }
    }
}

/// How far the call goes in which a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nothing happens.
    Before,
    /// The blobs of a commit are stored, its writes do not happen. For other calls the same as [`Crash::Before`].
    AfterBlobs,
    /// All of it happens.
    After,
}

impl Crash {
    /// All of them, for enumerating.
    pub const ALL: [Crash; 3] = [Crash::Before, Crash::AfterBlobs, Crash::After];
}

/// A back end under faults: what one process sees of the store. Cheap to clone; clones are the same process.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    env: Env,
    process: Arc<Mutex<Process>>,
    seen: Arc<Mutex<Seen>>,
}

struct Process {
    plan: Plan,
    calls: u64,
    crash: Option<(u64, Crash)>,
    late: Vec<Late>,
    faults: BTreeMap<&'static str, u64>,
}

/// What happens later, and at which call.
struct Late {
    due: u64,
    work: LateWork,
}

enum LateWork {
    Commit(Commit),
    Delete(Vec<BlobName>),
}

/// The last few states of items as some process saw them, newest last: what an eventually consistent read may show.
type Seen = BTreeMap<Key, VecDeque<Option<Item>>>;

const SEEN_STATES: usize = 4;

/// What strikes a call that writes.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Refuse,
    Throttle,
    Contend,
    LoseReply,
    LoseRequest,
    Late(u64),
    Crash(Crash),
}

/// The chances of one call, drawn once.
struct Drawn {
    fault: u64,
    other: u64,
}

const ONE: f64 = 9_007_199_254_740_992.0; // 2^53

fn part(drawn: u64) -> f64 {
    (drawn >> 11) as f64 / ONE
}

/// The first fault in whose share of one the number falls.
fn pick(drawn: u64, shares: &[(f64, Fault)]) -> Fault {
    let mut at = part(drawn);
    for (share, fault) in shares {
        if at < *share {
            return *fault;
        }
        at -= share;
    }
    Fault::None
}

fn name_of(fault: Fault) -> &'static str {
    match fault {
        Fault::None => "none",
        Fault::Refuse => "refuse",
        Fault::Throttle => "throttle",
        Fault::Contend => "contend",
        Fault::LoseReply => "lose_reply",
        Fault::LoseRequest => "lose_request",
        Fault::Late(_) => "late",
        Fault::Crash(_) => "crash",
    }
}

impl Faulty {
    /// A process of its own on a store.
    pub fn new(inner: Arc<dyn Store>, plan: Plan, env: Env) -> Self {
        Self { inner, env, process: Arc::new(Mutex::new(Process::new(plan))), seen: Arc::default() }
    }

    /// Another process on the same store: it has calls, faults and a crash of its own, and may read stale what
    /// this one saw.
    #[must_use]
    pub fn another(&self, plan: Plan, env: Env) -> Self {
        Self {
            inner: self.inner.clone(),
            env,
            process: Arc::new(Mutex::new(Process::new(plan))),
            seen: self.seen.clone(),
        }
    }

    /// Goes on under another plan. What is late stays late.
    pub fn set_plan(&self, plan: Plan) {
        self.process.lock().plan = plan;
    }

    /// The process dies in its `call`-th call, counted from 1 and from the start: that call goes as far as `crash`
    /// says, and neither it nor any later one ever answers. A call that was made before and is still under way does
    /// answer.
    pub fn crash_at(&self, call: u64, crash: Crash) {
        self.process.lock().crash = Some((call, crash));
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.process.lock().calls
    }

    /// How often each fault struck, by the name of its field in [`Plan`], and `crash`.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.process.lock().faults.clone()
    }

    /// Commits and deletes that have yet to arrive.
    pub fn late(&self) -> usize {
        self.process.lock().late.len()
    }

    /// Lets everything that is late arrive now, in the order in which it was due.
    pub async fn settle(&self) {
        let mut late = std::mem::take(&mut self.process.lock().late);
        late.sort_by_key(|l| l.due);
        for late in late {
            self.arrive(late.work).await;
        }
    }

    async fn arrive(&self, work: LateWork) {
        // Nobody waits for the answer.
        match work {
            LateWork::Commit(commit) => drop(self.inner.commit(commit).await),
            LateWork::Delete(names) => drop(self.inner.delete_blobs(&names).await),
        }
    }

    /// Counts a call, lets arrive what is due, and draws its chances; never answers after a crash.
    async fn enter(&self) -> (Drawn, Option<Crash>) {
        let drawn = Drawn { fault: self.env.random(), other: self.env.random() };
        let (due, crash) = {
            let mut process = self.process.lock();
            process.calls += 1;
            let now = process.calls;
            let crash = match process.crash {
                Some((at, _)) if now > at => None,
                Some((at, crash)) if now == at => Some(Some(crash)),
                _ => Some(None),
            };
            let mut due = Vec::new();
            if crash.is_some() {
                let mut at = 0;
                while at < process.late.len() {
                    if process.late[at].due <= now {
                        due.push(process.late.swap_remove(at));
                    } else {
                        at += 1;
                    }
                }
            }
            (due, crash)
        };
        for late in due {
            self.arrive(late.work).await;
        }
        match crash {
            Some(crash) => (drawn, crash),
            None => std::future::pending().await,
        }
    }

    /// How long a call waits before and after its work.
    fn waits(&self, drawn: u64) -> (Duration, Duration) {
        let process = self.process.lock();
        let plan = &process.plan;
        let slow = part(drawn) < plan.slow;
        let share = part(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if slow {
            let long = plan.slow_for.mul_f64(share);
            return if drawn & 1 == 0 { (long, Duration::ZERO) } else { (Duration::ZERO, long) };
        }
        let spread = plan.latency.end.saturating_sub(plan.latency.start);
        let latency = plan.latency.start + spread.mul_f64(share);
        (latency / 2, latency / 2)
    }

    async fn wait(&self, duration: Duration) {
        if !duration.is_zero() {
            self.env.sleep(duration).await;
        }
    }

    fn strike(&self, fault: Fault) -> Fault {
        if fault != Fault::None {
            *self.process.lock().faults.entry(name_of(fault)).or_default() += 1;
        }
        fault
    }

    /// The fault of a call that writes.
    fn write_fault(&self, drawn: &Drawn, crash: Option<Crash>) -> Fault {
        if let Some(crash) = crash {
            return self.strike(Fault::Crash(crash));
        }
        let fault = {
            let process = self.process.lock();
            let plan = &process.plan;
            let after = 1 + drawn.other % plan.late_calls.max(1);
            pick(
                drawn.fault,
                &[
                    (plan.refuse, Fault::Refuse),
                    (plan.throttle, Fault::Throttle),
                    (plan.contend, Fault::Contend),
                    (plan.lose_reply, Fault::LoseReply),
                    (plan.lose_request, Fault::LoseRequest),
                    (plan.late, Fault::Late(after)),
                ],
            )
        };
        self.strike(fault)
    }

    /// Stores blobs without their writes: a check without conditions changes nothing.
    async fn blobs_alone(&self, commit: &Commit) {
        if let (false, Some(write)) = (commit.blobs.is_empty(), commit.writes.first()) {
            let blobs = commit.blobs.clone();
            let _ = self
                .inner
                .commit(Commit { blobs, writes: vec![Write::check(write.key.clone())] })
                .await;
        }
    }

    fn delay(&self, after: u64, work: LateWork) {
        let mut process = self.process.lock();
        let due = process.calls + after;
        process.late.push(Late { due, work });
    }

    /// A read: waits, fails by the plan, else reads.
    async fn read<T>(
        &self,
        read: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<(T, Drawn), ReadError> {
        let (drawn, crash) = self.enter().await;
        if crash.is_some() {
            self.strike(Fault::Crash(Crash::Before));
            return std::future::pending().await;
        }
        let (before, after) = self.waits(drawn.other);
        self.wait(before).await;
        let (refuse, throttle) = {
            let process = self.process.lock();
            (process.plan.refuse_read, process.plan.throttle_read)
        };
        let fault = pick(drawn.fault, &[(refuse, Fault::Refuse), (throttle, Fault::Throttle)]);
        let answer = match fault {
            Fault::Refuse => Err(ReadError::Unavailable("a fault of the plan".to_owned())),
            Fault::Throttle => Err(ReadError::Throttled),
            _ => read.await,
        };
        if fault != Fault::None {
            let name = if fault == Fault::Refuse { "refuse_read" } else { "throttle_read" };
            *self.process.lock().faults.entry(name).or_default() += 1;
        }
        self.wait(after).await;
        answer.map(|a| (a, drawn))
    }

    fn remember(&self, key: &Key, item: &Option<Item>) {
        let mut seen = self.seen.lock();
        let states = seen.entry(key.clone()).or_default();
        if states.back() != Some(item) {
            states.push_back(item.clone());
            if states.len() > SEEN_STATES {
                states.pop_front();
            }
        }
    }

    /// An older state of the item, if any was seen and chance wants it.
    fn stale(&self, key: &Key, drawn: &Drawn) -> Option<Option<Item>> {
        let chance = self.process.lock().plan.stale_read;
        if part(drawn.fault.rotate_left(32)) >= chance {
            return None;
        }
        let old = {
            let seen = self.seen.lock();
            let states = seen.get(key)?;
            states.get(drawn.other as usize % states.len())?.clone()
        };
        *self.process.lock().faults.entry("stale_read").or_default() += 1;
        Some(old)
    }
}

impl Process {
    fn new(plan: Plan) -> Self {
        Self { plan, calls: 0, crash: None, late: Vec::new(), faults: BTreeMap::new() }
    }
}

fn lost() -> CommitError {
    CommitError::Unknown("the reply was lost, by the plan".to_owned())
}

fn refused() -> CommitError {
    CommitError::Unavailable("a fault of the plan".to_owned())
}

#[async_trait]
impl Store for Faulty {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        let (item, drawn) = self.read(self.inner.get(key, consistency)).await?;
        self.remember(key, &item);
        if consistency == Consistency::Eventual
            && let Some(old) = self.stale(key, &drawn)
        {
            return Ok(old);
        }
        Ok(item)
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        let (items, _) = self.read(self.inner.batch_get(keys)).await?;
        keys.iter().zip(&items).for_each(|(key, item)| self.remember(key, item));
        Ok(items)
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        Ok(self.read(self.inner.query(query)).await?.0)
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let (drawn, crash) = self.enter().await;
        let (before, after) = self.waits(drawn.other);
        self.wait(before).await;
        let fault = self.write_fault(&drawn, crash);
        // What falls between the blobs and the writes of a commit falls there in half of the cases.
        let between = drawn.other & 2 == 0;
        let answer = match fault {
            Fault::None => {
                let single = match &commit.writes[..] {
                    [write] => Some(write.key.clone()),
                    _ => None,
                };
                let answer = self.inner.commit(commit).await;
                if let (Some(key), Ok(Committed { image: image @ Some(_) })) = (single, &answer) {
                    self.remember(&key, image);
                }
                answer
            }
            Fault::Refuse | Fault::LoseRequest => {
                if between {
                    self.blobs_alone(&commit).await;
                }
                Err(if fault == Fault::Refuse { refused() } else { lost() })
            }
            Fault::Throttle => Err(CommitError::Throttled),
            Fault::Contend => {
                self.blobs_alone(&commit).await;
                Err(CommitError::Contended)
            }
            Fault::LoseReply => match self.inner.commit(commit).await {
                // A request that is at fault is refused before it is sent.
                Err(e @ CommitError::Invalid(_)) => Err(e),
                _ => Err(lost()),
            },
            Fault::Late(calls) => {
                commit.check()?;
                let late = if between {
                    self.blobs_alone(&commit).await;
                    Commit::all(commit.writes)
                } else {
                    commit
                };
                self.delay(calls, LateWork::Commit(late));
                Err(lost())
            }
            Fault::Crash(crash) => {
                match crash {
                    Crash::Before => {}
                    Crash::AfterBlobs => self.blobs_alone(&commit).await,
                    Crash::After => drop(self.inner.commit(commit).await),
                }
                std::future::pending().await
            }
        };
        self.wait(after).await;
        answer
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        Ok(self.read(self.inner.blob(name, range)).await?.0)
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        Ok(self.read(self.inner.list_blobs(owner, after, limit)).await?.0)
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        let (drawn, crash) = self.enter().await;
        let (before, after) = self.waits(drawn.other);
        self.wait(before).await;
        let answer = match self.write_fault(&drawn, crash) {
            Fault::None => self.inner.delete_blobs(names).await,
            Fault::Refuse => Err(refused()),
            Fault::Throttle | Fault::Contend => Err(CommitError::Throttled),
            Fault::LoseReply => {
                self.inner.delete_blobs(names).await?;
                Err(lost())
            }
            Fault::LoseRequest => Err(lost()),
            Fault::Late(calls) => {
                crate::check_deletes(names)?;
                self.delay(calls, LateWork::Delete(names.to_vec()));
                Err(lost())
            }
            Fault::Crash(crash) => {
                if crash == Crash::After {
                    drop(self.inner.delete_blobs(names).await);
                }
                std::future::pending().await
            }
        };
        self.wait(after).await;
        answer
    }
}
