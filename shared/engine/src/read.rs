//! Reading a partition by offset: page, then segment; at the tail the head alone.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    Engine, Error, Extent, PartitionId, Read, Record,
    head::{Head, Placed},
    message_id,
    segment::Segment,
};

/// Segments that one read fetches at a time.
const PARALLEL_SEGMENTS: usize = 8;

impl Engine {
    /// How far a partition reaches; `None` if it does not exist.
    pub async fn extent(&self, partition: &PartitionId) -> Result<Option<Extent>, Error> {
        Ok(self.head(partition).await?.map(|h| h.extent()))
    }

    /// Reads from an offset, or from the floor if that is higher: at most `records` records and about `bytes` bytes of
    /// payload, but at least one record if there is one.
    ///
    /// # Errors
    /// [`Error::PartitionNotFound`].
    pub async fn read(
        &self,
        partition: &PartitionId,
        from: u64,
        records: usize,
        bytes: usize,
    ) -> Result<Read, Error> {
        let head = self.head(partition).await?.ok_or(Error::PartitionNotFound)?;
        let from = from.clamp(head.floor, head.tail);
        let to = head.tail.min(from.saturating_add(records as u64));
        let found = self.read_under(partition, &head, from, to, bytes).await?;
        let next = found.last().map_or(from, |r| r.offset + 1);
        Ok(Read { records: found, next, extent: head.extent() })
    }

    /// Reads `from..to` under a head that reaches there, at most about `bytes` bytes.
    pub(crate) async fn read_under(
        &self,
        partition: &PartitionId,
        head: &Arc<Head>,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<Vec<Record>, Error> {
        let mut found = Vec::new();
        let mut size = 0usize;
        let mut at = from;
        while at < to && (size < bytes || found.is_empty()) {
            let placed =
                self.placed_from(partition, head, at, to, bytes.saturating_sub(size)).await?;
            if placed.is_empty() {
                break;
            }
            let mut loads = stream::iter(placed.into_iter().map(|placed| async move {
                let segment = self.segment(partition, &placed.descriptor).await?;
                Ok::<_, Error>((placed, segment))
            }))
            .buffered(PARALLEL_SEGMENTS);
            while let Some((placed, segment)) = loads.try_next().await? {
                for record in records(partition, &placed, &segment, at, to) {
                    if size >= bytes && !found.is_empty() {
                        return Ok(found);
                    }
                    size += record.payload.len();
                    at = record.offset + 1;
                    found.push(record);
                }
            }
        }
        Ok(found)
    }

    /// Segments that hold `from..to`, from the first one, as many as about `bytes` packed bytes take: those of one
    /// page, or those of the head.
    async fn placed_from(
        &self,
        partition: &PartitionId,
        head: &Arc<Head>,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<Vec<Placed>, Error> {
        let mut room = bytes as u64;
        let mut first = true;
        let mut pick = |placed: Placed| -> Option<Placed> {
            let wanted = first || room > 0;
            first = false;
            room = room.saturating_sub(placed.descriptor.bytes);
            wanted.then_some(placed)
        };
        let overlaps = |p: &Placed| p.end() > from && p.base < to;
        if from >= head.base {
            return Ok(head.placed().filter(overlaps).map_while(&mut pick).collect());
        }
        match self.page_at(partition, from).await? {
            Some(page) => Ok(page.placed().filter(overlaps).map_while(&mut pick).collect()),
            None => {
                // Between our look at the head and now retention may have taken the page.
                let floor = self.head(partition).await?.map_or(u64::MAX, |h| h.floor);
                if floor > from {
                    return Ok(Vec::new());
                }
                Err(Error::Corrupt(format!("partition {partition}: no page holds offset {from}")))
            }
        }
    }

    /// The served time at and after which a position begins: the first offset whose record is of this time or later.
    pub(crate) async fn offset_at_time(
        &self,
        partition: &PartitionId,
        head: &Arc<Head>,
        time_us: i64,
    ) -> Result<u64, Error> {
        let first_at = |mut placed: Box<dyn Iterator<Item = Placed> + Send + '_>| {
            placed.find(|p| p.time_us >= time_us).map(|p| p.base)
        };
        if head.base_us < time_us {
            return Ok(first_at(Box::new(head.placed())).unwrap_or(head.tail).max(head.floor));
        }
        let mut found = head.base;
        while found > head.floor {
            let Some(page) = self.page_below(partition, found).await? else { break };
            if page.last_us < time_us {
                break;
            }
            found = first_at(Box::new(page.placed())).unwrap_or(page.tail);
            if found > page.base {
                break;
            }
        }
        Ok(found.max(head.floor))
    }
}

/// The records of one segment within `from..to`.
fn records<'a>(
    partition: &'a PartitionId,
    placed: &'a Placed,
    segment: &'a Segment,
    from: u64,
    to: u64,
) -> impl Iterator<Item = Record> + 'a {
    let skip = from.saturating_sub(placed.base) as usize;
    let end = (to.min(placed.end()).saturating_sub(placed.base)) as usize;
    let range = skip.min(end)..end.min(segment.records.len());
    (placed.base + range.start as u64..).zip(&segment.records[range]).map(
        move |(offset, packed)| {
            let derived = || message_id(partition, offset, placed.time_us);
            let id = packed.id.unwrap_or_else(derived);
            Record {
                offset,
                time_us: placed.time_us,
                id,
                transaction_id: match &packed.transaction_id {
                    Some(id) => id.to_string(),
                    None => id.to_string(),
                },
                key: packed.key.clone(),
                headers: packed.headers.clone(),
                payload: packed.payload.clone(),
            }
        },
    )
}
