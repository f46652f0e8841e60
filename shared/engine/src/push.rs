//! Pushing: items of mixed streams and partitions, each (stream, partition) atomic for itself.

use std::collections::HashMap;

use futures_util::future::join_all;

use crate::{
    DEFAULT_PARTITION, Engine, Error, PushItem, Pushed, append::Candidate, limits,
    stream::StreamRecord, warm::Counts,
};

/// Items of one (stream, partition), with their places in the request.
pub(crate) struct Group {
    pub(crate) stream: String,
    pub(crate) partition: String,
    pub(crate) places: Vec<usize>,
}

/// Groups items by stream and partition, in the order of first mention.
pub(crate) fn group(items: &[PushItem]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut index: HashMap<(&str, &str), usize> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let partition = partition_of(item);
        let at = *index.entry((&item.stream, partition)).or_insert_with(|| {
            let (stream, partition) = (item.stream.clone(), partition.to_owned());
            groups.push(Group { stream, partition, places: Vec::new() });
            groups.len() - 1
        });
        groups[at].places.push(place);
    }
    groups
}

pub(crate) fn partition_of(item: &PushItem) -> &str {
    if item.partition.is_empty() { DEFAULT_PARTITION } else { &item.partition }
}

/// The candidates of some items; to a declared stream in the text that they are stored in. Checked here, a bad row
/// refuses its own push and not those that share the commit.
fn check_rows(stream: &StreamRecord, items: &[&PushItem]) -> Result<Vec<Candidate>, Error> {
    let mut candidates: Vec<_> = items.iter().map(|i| Candidate::new(i)).collect();
    if let Some(declared) = &stream.declared {
        for (row, candidate) in candidates.iter_mut().enumerate() {
            let name = || stream.info.name.clone();
            candidate.check(declared).map_err(|error| Error::Row { stream: name(), row, error })?;
        }
    }
    Ok(candidates)
}

/// Checks what can be checked of an item alone.
pub(crate) fn check(item: &PushItem) -> Result<(), Error> {
    let limit = |what, got, limit| {
        if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
    };
    Error::check_name("the stream's name", &item.stream)?;
    Error::check_name("the partition's name", partition_of(item))?;
    limit("bytes in one payload", item.payload.len(), limits::PAYLOAD_BYTES)?;
    let id_bytes = item.transaction_id.as_ref().map_or(0, String::len);
    limit("bytes in a transaction id", id_bytes, limits::TRANSACTION_ID_BYTES)
}

impl Engine {
    /// Pushes records. Answers stand in the order of the items.
    ///
    /// The items of one (stream, partition) land together or not at all and get offsets in the order of the items;
    /// different partitions are independent. Streams and partitions are made by the first push to them. An item
    /// whose transaction id was pushed to the same partition within the stream's deduplication window, or earlier in
    /// the same call, is a duplicate and is answered with the original.
    pub async fn push(&self, items: Vec<PushItem>) -> Vec<Pushed> {
        let mut outcomes: Vec<Option<Pushed>> = vec![None; items.len()];
        let mut groups = group(&items);
        for group in &mut groups {
            // One bad item refuses its group: the group is atomic.
            if let Some(error) = group.places.iter().find_map(|&p| check(&items[p]).err()) {
                for place in std::mem::take(&mut group.places) {
                    outcomes[place] = Some(Pushed::Refused(error.clone()));
                }
            }
        }
        groups.retain(|g| !g.places.is_empty());
        let pushes = groups.iter().map(|group| self.push_group(group, &items));
        let answers = if groups.len() == 1 {
            // The usual case needs no combinator around it.
            vec![self.push_group(&groups[0], &items).await]
        } else {
            join_all(pushes).await
        };
        for (group, answer) in groups.iter().zip(answers) {
            for (at, &place) in group.places.iter().enumerate() {
                outcomes[place] = Some(match &answer {
                    Ok(pushed) => pushed[at].clone(),
                    Err(e) => Pushed::Refused(e.clone()),
                });
            }
        }
        let duplicates =
            outcomes.iter().filter(|o| matches!(o, Some(Pushed::Duplicate { .. }))).count();
        Counts::add(&self.inner.counts.records_duplicate, duplicates);
        outcomes.into_iter().map(|o| o.unwrap_or(Pushed::Refused(Error::Busy))).collect()
    }

    async fn push_group(&self, group: &Group, items: &[PushItem]) -> Result<Vec<Pushed>, Error> {
        // Repeats within one call collapse onto the first, also where the window is off.
        let mut firsts: HashMap<&str, usize> = HashMap::new();
        let mut unique = Vec::with_capacity(group.places.len());
        let mut origin = Vec::with_capacity(group.places.len());
        for &place in &group.places {
            let at = unique.len();
            let first = match items[place].transaction_id.as_deref() {
                Some(id) => *firsts.entry(id).or_insert(at),
                None => at,
            };
            origin.push((first, first != at));
            if first == at {
                unique.push(&items[place]);
            }
        }
        let pushed = self.push_unique(group, &unique).await?;
        Ok(origin
            .into_iter()
            .map(|(at, repeat)| match &pushed[at] {
                Pushed::Queued { id, offset } if repeat => {
                    Pushed::Duplicate { id: Some(*id), offset: Some(*offset) }
                }
                other => other.clone(),
            })
            .collect())
    }

    async fn push_unique(&self, group: &Group, items: &[&PushItem]) -> Result<Vec<Pushed>, Error> {
        // A stream may be deleted under a push that knew it; the push then makes it anew, like any first push.
        for _ in 0..3 {
            self.check_push_allowed().await?;
            let mut stream = self.ensure_stream(&group.stream).await?;
            let mut checked = check_rows(&stream, items);
            if checked.is_err() {
                // What is remembered of its schema may be old, and nothing is refused for that.
                if let Some(now) = self.reread_stream(&group.stream).await? {
                    stream = now;
                    checked = check_rows(&stream, items);
                }
            }
            let candidates = checked?;
            match self.append(&stream, &group.partition, candidates).await {
                Err(Error::StreamNotFound(_)) => {
                    self.inner.streams.remove(&group.stream);
                }
                answer => return answer,
            }
        }
        Err(Error::Busy)
    }
}
