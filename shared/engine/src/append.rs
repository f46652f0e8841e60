//! Appending to a partition: payload first, then one conditional write on its head.
//!
//! An [`Append`] carries records to one partition. It plans a write from what is known of the head, learns from each
//! refusal (the refusal brings the head as it is), and plans again. Alone it commits commutatively: the conditions
//! guard only what matters (the id set is the one that was checked and has none of these ids, there is room, the
//! blob is younger than the collector's mark, nobody sleeps), so that writers with different ids do not disturb each
//! other. As part of a transaction it is *pinned* to the tail that it knows, since a transaction returns no image
//! that would tell the offsets. Batches of more ids than the head's set takes, and appends that wake sleepers, are
//! pinned too.
//!
//! To a declared stream it brings its rows in the text that the live generation's schema gives them, and commits on the
//! condition that the partition's epoch is the one that they were checked under. Rows that were published are *frames*
//! (see [`crate::publish`]): an append judges them by the head that it plans on, and moves their publishers' marks in
//! the same write. Such an append is pinned, since a mark names offsets.
//!
//! It never answers before the head names the segment, and never takes a lost reply for a failure: the segment's name
//! in the head or a page is the proof.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use tidewheel_schema::RowError;
use tidewheel_store::{
    Blob, Change, Commit, CommitError, Committed, Condition, Failed, Item, Value, Write,
};

use crate::{
    Declared, Engine, Error, GroupId, PartitionId, Pushed, Uuid,
    encryption::Sealer,
    generations::retired_error,
    head::{Descriptor, Head, Placed, commit_token, id_bytes},
    keys, limits, live, message_id,
    publish::{Framed, Verdict},
    publisher::{Mark, Range, attribute, is_in_head, item_write},
    segment::{self, Packed, Segment, TransactionId, id_hash},
    stream::StreamRecord,
    view::IdView,
    warm::{Counts, Warm},
};

/// A record that wants into a partition.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) packed: Packed,
    /// 0 without a transaction id.
    hash: u64,
    /// The row as it came, if the payload is its canonical text, and the epoch whose schema made it so.
    checked: Option<(Bytes, i64)>,
}

impl Candidate {
    pub(crate) fn new(item: &crate::PushItem) -> Self {
        Self {
            hash: item.transaction_id.as_deref().map_or(0, id_hash),
            checked: None,
            packed: Packed {
                id: None,
                transaction_id: item.transaction_id.as_deref().map(TransactionId::new),
                key: item.key.clone(),
                headers: item.headers.clone(),
                payload: item.payload.clone(),
            },
        }
    }

    /// A published row in its canonical text.
    pub(crate) fn row(row: Bytes, canonical: Bytes, epoch: i64) -> Self {
        let packed =
            Packed { id: None, transaction_id: None, key: None, headers: None, payload: canonical };
        Self { packed, hash: 0, checked: Some((row, epoch)) }
    }

    /// Gives the payload the text that it has under this declaration.
    ///
    /// # Errors
    /// [`RowError`], naming the column.
    pub(crate) fn check(&mut self, declared: &Declared) -> Result<(), RowError> {
        let row = match &self.checked {
            Some((_, epoch)) if *epoch == declared.epoch => return Ok(()),
            Some((row, _)) => row.clone(),
            None => self.packed.payload.clone(),
        };
        self.packed.payload = declared.canonical(&row)?;
        self.checked = Some((row, declared.epoch));
        Ok(())
    }
}

/// The segment of an append, packed for its head.
struct Packing {
    blob: Blob,
    hashes: Arc<[u64]>,
    /// Which candidates it holds, in order.
    members: Vec<usize>,
}

/// One planned commit of an append.
pub(crate) struct Plan {
    pub(crate) blob: Blob,
    pub(crate) writes: Vec<Write>,
    /// What the head will be, if the plan is pinned.
    after: Option<Head>,
    /// It wakes the partition's followers.
    wakes_live: bool,
    /// The tail that was known when it was planned.
    known_tail: u64,
}

/// A publisher's mark that an append moves.
struct Moved {
    digest: String,
    before: Mark,
    after: Mark,
    in_head: bool,
}

/// Records on their way into one partition.
pub(crate) struct Append {
    engine: Engine,
    stream: Arc<StreamRecord>,
    id: PartitionId,
    name: String,
    warm: Arc<Warm>,
    candidates: Vec<Candidate>,
    outcomes: Vec<Option<Pushed>>,
    packing: Option<Packing>,
    /// The key that this append's segments are sealed with; `None` on a stream that is not encrypted.
    sealer: Option<Arc<Sealer>>,
    /// The id set cannot be used for these ids: one of them meets another id's hash, or an expired copy.
    clear_ids: bool,
    /// A commit whose reply was lost: it may arrive at any moment.
    doubtful: Option<Doubtful>,
    /// It has woken the partition's followers, and the doorbell is to be rung.
    rings: bool,
    /// The beginning of the full list before which it stood back.
    stood_back: Option<u64>,
    /// The published frames that the candidates are the rows of, if they are.
    pub(crate) frames: Vec<Framed>,
    /// Marks that lie in items of their own, as they were read.
    mark_items: HashMap<String, Option<Mark>>,
    /// The served time of what was appended, µs.
    pub(crate) time_us: Option<i64>,
}

/// A commit whose reply was lost.
struct Doubtful {
    blob: String,
    known_tail: u64,
    wakes_live: bool,
}

impl Append {
    pub(crate) fn new(
        engine: &Engine,
        stream: Arc<StreamRecord>,
        partition: &str,
        candidates: Vec<Candidate>,
    ) -> Self {
        let id = PartitionId::of(&stream.info.id, partition);
        Self {
            engine: engine.clone(),
            id,
            name: partition.to_owned(),
            warm: engine.warm(&id),
            outcomes: vec![None; candidates.len()],
            candidates,
            stream,
            packing: None,
            sealer: None,
            clear_ids: false,
            doubtful: None,
            rings: false,
            stood_back: None,
            frames: Vec::new(),
            mark_items: HashMap::new(),
            time_us: None,
        }
    }

    pub(crate) fn id(&self) -> &PartitionId {
        &self.id
    }

    /// Gives the records an id that they were promised. Only for one whose order by that id holds, see [`crate::timer`].
    pub(crate) fn promise(&mut self, id: Uuid) {
        self.candidates.iter_mut().for_each(|c| c.packed.id = Some(id));
    }

    pub(crate) fn stream_name(&self) -> &str {
        &self.stream.info.name
    }

    pub(crate) fn warm(&self) -> &Arc<Warm> {
        &self.warm
    }

    /// Plans the next commit; `None` when every record is decided and nothing is left to write.
    pub(crate) async fn plan(
        &mut self,
        view: &mut IdView,
        pinned: bool,
    ) -> Result<Option<Plan>, Error> {
        self.engine.check_push_allowed().await?;
        self.stream.check_partition(&self.name)?;
        if self.sealer.is_none() && self.stream.info.options.encryption_enabled {
            self.sealer = Some(self.engine.sealer().await?);
        }
        let mut fresh = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let warm = self.warm.head().filter(|h| h.stream_id == self.stream.info.id && !fresh);
            let head = match warm {
                Some(head) => Some(head),
                None => {
                    fresh = true;
                    self.engine.head(&self.id).await?
                }
            };
            let Some(head) = head else {
                match &self.stream.declared {
                    None => return self.plan_creation().await.map(Some),
                    Some(declared) if !declared.declaration.log => {
                        return Err(Error::NoLog(declared.name.clone()));
                    }
                    // A declared stream's head goes with the stream.
                    Some(declared) => return Err(Error::StreamNotFound(declared.name.clone())),
                }
            };
            if let Some(placed) = self.arrived(&head).await? {
                self.decided(view, &placed);
                return Ok(None);
            }
            let full = head.segments.len() >= limits::HEAD_SEGMENTS;
            if full && !self.warm.has_filled(head.base) && self.stood_back != Some(head.base) {
                self.stood_back = Some(head.base);
                self.engine.stand_back(&self.id).await?;
                continue;
            }
            if head.epoch != self.epoch() {
                // One of the two is old.
                fresh = true;
                self.reread_stream().await?;
                continue;
            }
            self.check_rows()?;
            let marks = self.judge(&head).await?;
            if !fresh && self.frames.iter().any(Framed::is_refused_by_head) {
                // A remembered head may be behind, and no publisher is refused for that.
                fresh = true;
                continue;
            }
            self.decide_duplicates(view, &head, pinned).await?;
            if self.outcomes.iter().all(Option::is_some) {
                return Ok(None);
            }
            if full {
                let window_us = self.stream.window_us();
                self.engine.roll(&self.id, &head, view, window_us).await?;
                continue;
            }
            return self.plan_append(&head, pinned, marks).map(Some);
        }
        Err(Error::Busy)
    }

    /// The epoch of what is known of the stream's declaration; 0 if it has none.
    fn epoch(&self) -> i64 {
        self.stream.declared.as_ref().map_or(0, |d| d.epoch)
    }

    /// Sees to it that every row has the text that the live generation's schema gives it.
    fn check_rows(&mut self) -> Result<(), Error> {
        let Some(declared) = &self.stream.declared else { return Ok(()) };
        if let Some(retired) = declared.retired {
            return Err(retired_error(&declared.name, retired));
        }
        let stale = |c: &Candidate| c.checked.as_ref().is_none_or(|(_, e)| *e != declared.epoch);
        if !self.candidates.iter().any(stale) {
            return Ok(());
        }
        self.packing = None;
        for (at, candidate) in self.candidates.iter_mut().enumerate() {
            if let Err(error) = candidate.check(declared) {
                match self.frames.iter_mut().find(|f| f.rows.contains(&at)) {
                    // It fails alone.
                    Some(frame) => frame.verdict = Verdict::Rejected(error.to_string()),
                    None => {
                        return Err(Error::Row { stream: declared.name.clone(), row: at, error });
                    }
                }
            }
        }
        Ok(())
    }

    /// Judges the frames by the marks under this head, in their order: which rows are new, which were there before, and
    /// which frames are refused. Answers the marks that the new rows move, without their offsets.
    async fn judge(&mut self, head: &Head) -> Result<Vec<Moved>, Error> {
        let mut moved: Vec<Moved> = Vec::new();
        let life = self.stream.declared.as_ref().map_or(0, |d| d.life);
        for at in 0..self.frames.len() {
            let Framed { digest, seq, rows, verdict, .. } = &self.frames[at];
            let (seq, rows) = (*seq, rows.clone());
            self.outcomes[rows.clone()].fill(None);
            if let Verdict::Rejected(_) = verdict {
                self.outcomes[rows].fill(Some(Pushed::Refused(Error::Busy)));
                continue;
            }
            let Some((digest, epoch)) = digest.clone() else {
                self.frames[at].verdict = Verdict::Taken { known: 0 };
                continue;
            };
            let place = match moved.iter().position(|m| m.digest == digest) {
                Some(place) => Some(place),
                None => self.mark(head, &digest).await?.map(|(before, in_head)| {
                    let after = before.clone();
                    moved.push(Moved { digest: digest.clone(), before, after, in_head });
                    moved.len() - 1
                }),
            };
            let current = |m: &&mut Moved| m.after.life == life && m.after.epoch == epoch;
            let mark = place.and_then(|place| moved.get_mut(place)).filter(current);
            let Some(Moved { after, .. }) = mark else {
                self.frames[at].verdict = Verdict::Superseded;
                self.outcomes[rows].fill(Some(Pushed::Refused(Error::Busy)));
                continue;
            };
            let expected = after.last_seq + 1;
            if seq > expected {
                self.frames[at].verdict = Verdict::Gap { expected };
                self.outcomes[rows].fill(Some(Pushed::Refused(Error::Busy)));
                continue;
            }
            let known = rows.len().min((expected - seq) as usize);
            let landed = self.warm.landed.lock();
            for (seq, row) in (seq..).zip(rows.start..rows.start + known) {
                let offset = after.offset_of(seq).or_else(|| landed.offset_of(life, &digest, seq));
                self.outcomes[row] = Some(Pushed::Duplicate { id: None, offset });
            }
            drop(landed);
            after.last_seq += (rows.len() - known) as u64;
            self.frames[at].verdict = Verdict::Taken { known };
        }
        if !self.frames.is_empty() {
            let open: Vec<usize> =
                (0..self.candidates.len()).filter(|&i| self.outcomes[i].is_none()).collect();
            if self.packing.as_ref().is_some_and(|p| p.members != open) {
                self.packing = None;
            }
        }
        moved.retain(|m| m.after.last_seq != m.before.last_seq);
        Ok(moved)
    }

    /// A publisher's mark under a head, and whether the head itself has it.
    async fn mark(&mut self, head: &Head, digest: &str) -> Result<Option<(Mark, bool)>, Error> {
        if let Some(mark) = head.marks.get(digest) {
            return Ok(Some((mark.clone(), true)));
        }
        if let Some(known) = self.mark_items.get(digest) {
            return Ok(known.clone().map(|mark| (mark, false)));
        }
        let mark = self.engine.mark_item(&self.id, digest).await?;
        self.mark_items.insert(digest.to_owned(), mark.clone());
        Ok(mark.map(|mark| (mark, false)))
    }

    /// Gives the marks that an append moves the offsets of its rows, which begin at `base`.
    fn number(&self, moved: &mut [Moved], members: &[usize], base: u64) {
        for mark in moved {
            mark.after = mark.before.clone();
            for frame in &self.frames {
                let own = frame.digest.as_ref().is_some_and(|(d, _)| *d == mark.digest);
                let Verdict::Taken { known } = frame.verdict else { continue };
                let new = frame.rows.len() - known;
                if own && new > 0 {
                    let first = members.partition_point(|&m| m < frame.rows.start + known);
                    mark.after.advance(base + first as u64, new as u64);
                }
            }
        }
    }

    /// Answers the records that were pushed before.
    async fn decide_duplicates(
        &mut self,
        view: &mut IdView,
        head: &Arc<Head>,
        pinned: bool,
    ) -> Result<(), Error> {
        let window_us = self.stream.window_us();
        self.clear_ids = false;
        if window_us == 0 || self.candidates.iter().all(|c| c.hash == 0) {
            return Ok(());
        }
        let open: Vec<usize> = (0..self.candidates.len())
            .filter(|&i| self.outcomes[i].is_none() && self.candidates[i].hash != 0)
            .collect();
        // The set vouches for what came since its generation began; an append that is pinned to the tail, and one
        // that meets the set, must have seen everything.
        let in_set = |i: &usize| head.ids.contains(&id_bytes(self.candidates[*i].hash));
        let full = head.ids.len() + open.len() > limits::HEAD_IDS;
        let all = pinned || full || !head.asleep.is_empty() || open.iter().any(in_set);
        let to = if all { head.tail } else { head.generation_tail };
        view.sync(&self.engine, &self.id, head, to, window_us).await?;
        let mut decided = false;
        for i in open {
            let hash = self.candidates[i].hash;
            let Some(offset) = view.find(hash) else {
                self.clear_ids |= head.ids.contains(&id_bytes(hash));
                continue;
            };
            match self.confirm(head, offset, i, window_us).await? {
                Some(outcome) => {
                    self.outcomes[i] = Some(outcome);
                    decided = true;
                }
                None => self.clear_ids |= head.ids.contains(&id_bytes(hash)),
            }
        }
        if decided {
            self.packing = None;
        }
        Ok(())
    }

    /// Confirms on the id itself that a record is a duplicate of the one at this offset.
    async fn confirm(
        &self,
        head: &Arc<Head>,
        offset: u64,
        candidate: usize,
        window_us: i64,
    ) -> Result<Option<Pushed>, Error> {
        let Some(id) = &self.candidates[candidate].packed.transaction_id else { return Ok(None) };
        if offset < head.floor {
            // Retention has taken the original, but it was there: the sender must not get a second copy.
            return Ok(Some(Pushed::Duplicate { id: None, offset: Some(offset) }));
        }
        let read = self.engine.read_under(&self.id, head, offset, offset + 1, 1).await?;
        let same = read.first().filter(|r| {
            id.is(&r.transaction_id) && self.engine.env().now_us() - r.time_us < window_us
        });
        Ok(same.map(|r| Pushed::Duplicate { id: Some(r.id), offset: Some(offset) }))
    }

    /// Packs the undecided records under a name that is younger than the mark.
    fn pack(&mut self, mark_us: i64) -> Result<&Packing, Error> {
        let stale = |p: &Packing| p.blob.name.made_us().is_none_or(|made| made <= mark_us);
        if self.packing.as_ref().is_none_or(stale) {
            let members: Vec<usize> =
                (0..self.candidates.len()).filter(|&i| self.outcomes[i].is_none()).collect();
            let hashes: Vec<u64> = members.iter().map(|&i| self.candidates[i].hash).collect();
            let records: Vec<Packed> =
                members.iter().map(|&i| self.candidates[i].packed.clone()).collect();
            let mut body = segment::encode(&records, &hashes)?;
            if let Some(sealer) = &self.sealer {
                body = sealer.seal(self.engine.env(), &segment::place(&self.id), &body)?;
            }
            let blob = Blob::fresh(segment::owner(&self.id), body, self.engine.env());
            self.packing = Some(Packing { blob, hashes: hashes.into(), members });
        }
        self.packing.as_ref().ok_or(Error::Busy)
    }

    /// The members of the id set that this append brings: its ids, or its own token if it has none.
    fn set_members(&self, packing: &Packing) -> BTreeSet<Bytes> {
        let mut members: BTreeSet<Bytes> = BTreeSet::new();
        if self.stream.window_us() > 0 {
            members.extend(packing.hashes.iter().filter(|&&h| h != 0).map(|&h| id_bytes(h)));
        }
        // A record without an id would let a late copy of the whole append in.
        if members.is_empty() {
            members.insert(id_bytes(commit_token(&packing.blob.name.id)));
        }
        members
    }

    fn plan_append(
        &mut self,
        head: &Arc<Head>,
        pinned: bool,
        mut marks: Vec<Moved>,
    ) -> Result<Plan, Error> {
        self.pack(head.mark_us)?;
        let Some(packing) = &self.packing else { return Err(Error::Busy) };
        let members = self.set_members(packing);
        let full = head.ids.len() + members.len() > limits::HEAD_IDS || self.clear_ids;
        let pinned = pinned || full || !head.asleep.is_empty() || !marks.is_empty();
        self.number(&mut marks, &packing.members, head.tail);
        let count = packing.members.len() as u64;
        let descriptor = Descriptor {
            blob: packing.blob.name.id.clone(),
            count,
            bytes: packing.blob.body.len() as u64,
        };
        let mut changes = vec![
            Change::Add("tail".into(), count as i64),
            Change::Append("segs".into(), vec![descriptor.encode()]),
        ];
        let mut conditions = vec![
            Condition::Equals("gen".into(), head.generation.into()),
            Condition::ShorterThan("segs".into(), limits::HEAD_SEGMENTS),
            Condition::LessThan("mark".into(), packing.blob.name.made_us().unwrap_or(0)),
        ];
        if head.epoch > 0 {
            conditions.push(Condition::Equals("epoch".into(), head.epoch.into()));
        }
        for mark in marks.iter().filter(|m| m.in_head) {
            conditions.push(is_in_head(&mark.digest, &mark.before));
            changes.push(Change::Set(attribute(&mark.digest), mark.after.encode()));
        }
        if full {
            changes.push(Change::Add("gen".into(), 1));
            changes.push(Change::Set("gen_tail".into(), ((head.tail + count) as i64).into()));
            changes.push(Change::Remove("ids".into()));
        } else {
            let room = limits::HEAD_IDS + 1 - members.len();
            conditions.push(Condition::ShorterThan("ids".into(), room));
            for member in &members {
                conditions.push(Condition::SetLacks("ids".into(), member.clone()));
            }
            changes.push(Change::IncludeBytes("ids".into(), members));
        }
        if pinned {
            conditions.push(Condition::Equals("tail".into(), (head.tail as i64).into()));
        }
        let mut writes = Vec::new();
        if head.asleep.is_empty() {
            conditions.push(Condition::Lacks("asleep".into()));
        } else {
            conditions.push(Condition::Equals("asleep".into(), Value::StrSet(head.asleep.clone())));
            changes.push(Change::Remove("asleep".into()));
            writes.extend(head.asleep.iter().filter_map(|g| self.ready_write(g)));
        }
        for mark in marks.iter().filter(|m| !m.in_head) {
            writes.push(item_write(&self.id, &mark.digest, &mark.before, &mark.after));
        }
        let mut write = Write::update(keys::head(&self.id), changes);
        write.conditions = conditions;
        writes.insert(0, write);
        let after = if pinned { Some(self.after(&writes[0], Some(&head.encode()))?) } else { None };
        let wakes_live = live::sleeps(&self.id, head);
        let (blob, known_tail) = (packing.blob.clone(), head.tail);
        Ok(Plan { blob, writes, after, wakes_live, known_tail })
    }

    /// The head as a write to it will leave it.
    fn after(&self, write: &Write, before: Option<&Item>) -> Result<Head, Error> {
        match write.apply(before) {
            Ok(Some(Some(item))) => Head::decode(&self.id, &item),
            _ => Err(Error::Corrupt(format!(
                "an append does not fit the head of partition {}",
                self.id
            ))),
        }
    }

    fn ready_write(&self, group: &str) -> Option<Write> {
        let bytes = u128::from_str_radix(group, 16).ok()?.to_be_bytes();
        let group = GroupId(Uuid::from_bytes(bytes));
        Some(self.engine.ready_put(&group, &self.id))
    }

    /// Plans the partition's first append, which makes it: head, entry in the stream's list, and a ready entry for
    /// every group, on the condition that there is no other group.
    async fn plan_creation(&mut self) -> Result<Plan, Error> {
        Error::check_name("the partition's name", &self.name)?;
        self.pack(0)?;
        let Some(packing) = &self.packing else { return Err(Error::Busy) };
        let members = self.set_members(packing);
        let count = packing.members.len() as u64;
        let mut head =
            Head::new(&self.stream.info.name, self.stream.info.id, &self.name, self.stream.version);
        head.tail = count;
        head.segments.push(Descriptor {
            blob: packing.blob.name.id.clone(),
            count,
            bytes: packing.blob.body.len() as u64,
        });
        if members.len() <= limits::HEAD_IDS {
            head.ids = members;
        } else {
            head.generation = 1;
            head.generation_tail = count;
        }
        let entry = Item::new().with("name", self.name.as_str());
        let mut writes = vec![
            Write::put(keys::head(&self.id), head.encode()).when(Condition::Absent),
            Write::put(keys::partition_entry(&self.stream.info.id, &self.id), entry),
            self.stream.held(),
        ];
        writes.extend(self.stream.groups.iter().filter_map(|g| self.ready_write(g)));
        let after = Some(self.after(&writes[0], None)?);
        let blob = packing.blob.clone();
        Ok(Plan { blob, writes, after, wakes_live: false, known_tail: 0 })
    }

    /// Learns from a refusal. `failed` holds the failed writes of this append's plan, by their place in it.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`] if the stream is gone; the caller may begin again with a new one.
    pub(crate) async fn learn(&mut self, failed: &[Failed]) -> Result<(), Error> {
        Counts::add(&self.engine.inner.counts.append_conflicts, 1);
        self.mark_items.clear();
        for failure in failed {
            match (failure.write, &failure.current) {
                (0, Some(item)) => self.warm.learn(Arc::new(Head::decode(&self.id, item)?)),
                (0, None) => {
                    self.warm.forget();
                    self.reread_stream().await?;
                }
                (2, _) if self.warm.head().is_none() => self.reread_stream().await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn reread_stream(&mut self) -> Result<(), Error> {
        let name = self.stream.info.name.clone();
        match self.engine.reread_stream(&name).await? {
            Some(record) if record.info.id == self.stream.info.id => self.stream = record,
            _ => return Err(Error::StreamNotFound(name)),
        }
        Ok(())
    }

    /// After a lost reply: true if the plan's segment is in the log. The records are decided then.
    ///
    /// A reply can be lost before the request arrives. If the segment is not found the same plan may be committed
    /// again: its conditions refuse whichever copy comes second.
    pub(crate) async fn resolve(&mut self, view: &mut IdView, plan: &Plan) -> Result<bool, Error> {
        let Some(head) = self.engine.head(&self.id).await? else { return Ok(false) };
        let placed = self.find(&head, &plan.blob.name.id, plan.known_tail).await?;
        let Some(placed) = placed else { return Ok(false) };
        Counts::add(&self.engine.inner.counts.outcomes_resolved, 1);
        self.rings |= plan.wakes_live;
        self.decided(view, &placed);
        self.engine.announce(&self.stream.info.name, &self.id, head.tail);
        Ok(true)
    }

    /// Where a segment is under a head, if it is; none was there below `known_tail`.
    async fn find(
        &self,
        head: &Head,
        blob: &str,
        known_tail: u64,
    ) -> Result<Option<Placed>, Error> {
        let mut placed = head.find(blob);
        let mut before = head.base;
        while placed.is_none() && before > known_tail {
            let Some(page) = self.engine.page_below(&self.id, before).await? else { break };
            placed = page.placed().find(|p| p.descriptor.blob == *blob);
            before = page.base;
        }
        Ok(placed)
    }

    /// The segment of our own earlier commit under this head, if its reply was lost and it has arrived since. Its ids
    /// must not be taken for another's: what has no id would be appended again without them.
    async fn arrived(&mut self, head: &Head) -> Result<Option<Placed>, Error> {
        let Some(Doubtful { blob, known_tail, wakes_live }) = self.doubtful.take() else {
            return Ok(None);
        };
        if self.packing.as_ref().is_none_or(|p| p.blob.name.id != blob) {
            // Its ids are another's by now, or the collector has passed it: it is refused when it comes.
            return Ok(None);
        }
        let placed = self.find(head, &blob, known_tail).await?;
        self.doubtful = Some(Doubtful { blob, known_tail, wakes_live });
        if placed.is_some() {
            self.rings |= wakes_live;
            Counts::add(&self.engine.inner.counts.outcomes_resolved, 1);
            self.engine.announce(&self.stream.info.name, &self.id, head.tail);
        }
        Ok(placed)
    }

    /// Takes note that the plan was committed.
    pub(crate) fn finish(
        &mut self,
        view: &mut IdView,
        plan: &Plan,
        committed: &Committed,
    ) -> Result<(), Error> {
        let head = match (&committed.image, &plan.after) {
            (Some(image), _) => Head::decode(&self.id, image)?,
            // A transaction brings no image, but it was pinned: what it left is known.
            (None, Some(after)) => after.clone(),
            (None, None) => {
                return Err(Error::Corrupt("a commit of one write without an image".into()));
            }
        };
        let placed = head.find(&plan.blob.name.id);
        let tail = head.tail;
        if head.segments.len() >= limits::HEAD_SEGMENTS {
            self.warm.fill(head.base);
        }
        self.warm.learn(Arc::new(head));
        self.rings |= plan.wakes_live;
        let Some(placed) = placed else {
            return Err(Error::Corrupt("an appended segment is not in its head".into()));
        };
        self.decided(view, &placed);
        self.engine.announce(&self.stream.info.name, &self.id, tail);
        Ok(())
    }

    fn decided(&mut self, view: &mut IdView, placed: &Placed) {
        let Some(packing) = self.packing.take() else { return };
        self.time_us = Some(placed.time_us);
        self.remember_ranges(&packing.members, placed.base);
        for (offset, &i) in (placed.base..).zip(&packing.members) {
            let derived = || message_id(&self.id, offset, placed.time_us);
            let id = self.candidates[i].packed.id.unwrap_or_else(derived);
            self.outcomes[i] = Some(Pushed::Queued { id, offset });
        }
        let counts = &self.engine.inner.counts;
        Counts::add(&counts.appends, 1);
        Counts::add(&counts.records_pushed, packing.members.len());
        view.appended(placed, Arc::clone(&packing.hashes));
        let records: Vec<Packed> =
            packing.members.iter().map(|&i| self.candidates[i].packed.clone()).collect();
        let payloads: usize = records.iter().map(|r| r.payload.len()).sum();
        let weight = (payloads + 160 * records.len()) as u64;
        let segment = Segment { hashes: packing.hashes.to_vec(), records, weight };
        self.engine.remember_segment(&self.id, &packing.blob.name.id, segment);
    }

    /// Takes note of where the rows of claimed frames have landed, and answers those that were repeated in the same commit.
    fn remember_ranges(&mut self, members: &[usize], base: u64) {
        if self.frames.iter().all(|f| f.digest.is_none()) {
            return;
        }
        let life = self.stream.declared.as_ref().map_or(0, |d| d.life);
        let mut landed = self.warm.landed.lock();
        for frame in &self.frames {
            let (Some((digest, _)), Verdict::Taken { known }) = (&frame.digest, &frame.verdict)
            else {
                continue;
            };
            let (rows, known) = (frame.rows.clone(), *known);
            if rows.len() > known {
                let first = members.partition_point(|&m| m < rows.start + known);
                let (seq, rows) = (frame.seq + known as u64, (rows.len() - known) as u64);
                landed.landed(life, digest, Range { seq, offset: base + first as u64, rows });
            }
            for (seq, row) in (frame.seq..).zip(rows.start..rows.start + known) {
                if let Some(Pushed::Duplicate { offset: offset @ None, .. }) =
                    &mut self.outcomes[row]
                {
                    *offset = landed.offset_of(life, digest, seq);
                }
            }
        }
    }

    /// Rings the doorbell if the append has woken the partition's followers. Not under the partition's lock.
    pub(crate) async fn ring(&mut self) {
        if std::mem::take(&mut self.rings) {
            self.engine.ring(&self.id).await;
        }
    }

    /// What became of each record, in the order they were given.
    pub(crate) fn outcomes(self) -> Vec<Pushed> {
        let undecided = || Pushed::Refused(Error::Busy);
        self.outcomes.into_iter().map(|o| o.unwrap_or_else(undecided)).collect()
    }

    /// The first record that was pushed before, if any.
    pub(crate) fn first_duplicate(&self) -> Option<String> {
        self.outcomes
            .iter()
            .position(|o| matches!(o, Some(Pushed::Duplicate { .. })))
            .and_then(|i| self.candidates[i].packed.transaction_id.as_ref())
            .map(ToString::to_string)
    }

    /// Commits alone until every record is decided.
    pub(crate) async fn run(&mut self, view: &mut IdView) -> Result<(), Error> {
        let mut doubt = None;
        let answer = self.run_until_decided(view, &mut doubt).await;
        Error::in_doubt(answer, doubt)
    }

    async fn run_until_decided(
        &mut self,
        view: &mut IdView,
        doubt: &mut Option<String>,
    ) -> Result<(), Error> {
        for attempt in 0..limits::COMMIT_ATTEMPTS {
            let Some(plan) = self.plan(view, false).await? else { return Ok(()) };
            let commit = Commit { blobs: vec![plan.blob.clone()], writes: plan.writes.clone() };
            match self.engine.commit(commit).await {
                Ok(committed) => return self.finish(view, &plan, &committed),
                Err(CommitError::Conflict(failed)) => {
                    self.learn(&failed).await?;
                    // What refused us may be our own earlier attempt.
                    if attempt > 0 && self.resolve(view, &plan).await? {
                        return Ok(());
                    }
                }
                Err(CommitError::Unknown(why)) => {
                    *doubt = Some(why);
                    self.doubtful = Some(Doubtful {
                        blob: plan.blob.name.id.clone(),
                        known_tail: plan.known_tail,
                        wakes_live: plan.wakes_live,
                    });
                    if self.resolve(view, &plan).await? {
                        return Ok(());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}
