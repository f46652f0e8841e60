//! The end of a table: its stream was deleted.
//!
//! A deleted stream's table stays for a while, because somebody may be reading it. When what is left of the stream is
//! swept, the table is *buried*: an item `t#buried` / `<stream id>` says since when. After
//! [`Settings::pinned_us`](crate::Settings::pinned_us) the files, the head and that item are deleted, in this order,
//! so that it may be cut off anywhere and repeated.
//!
//! A stream of the same name that was made meanwhile has the same directory. Then the files are left to it: cleaning
//! its table deletes what its snapshots do not name.

use tidewheel_engine::Uuid;
use tidewheel_store::{
    Change, Commit, CommitError, Condition, Consistency, Direction, Key, Query, Write,
    limits as store_limits,
};

use crate::{
    Error,
    directory::{Directory, HINT},
    files::Files,
    head::{self, Head},
    limits,
    logs::generation_id,
    snapshot::{STREAM, load_metadata},
    stream_metadata,
    tables::Tables,
};

/// The partition key of buried tables.
const BURIED: &str = "t#buried";

fn buried(stream: &Uuid) -> Key {
    Key::new(BURIED, stream.to_string())
}

impl Tables {
    /// Notes that the stream of a table was deleted, if there is a table.
    pub(crate) async fn bury(&self, stream: &Uuid) -> Result<(), Error> {
        let store = &self.inner.store;
        let keys = [head::key(stream), stream_metadata::key(stream)];
        let there = store.batch_get(&keys).await?;
        if there.iter().all(Option::is_none) {
            return Ok(());
        }
        let now_us = self.inner.env.now_us();
        let since = vec![Change::Set("at_us".into(), now_us.into())];
        let note = Write::update(buried(stream), since).when(Condition::Absent);
        match store.commit(Commit::one(note)).await {
            // It was noted before, or the next sweep notes it.
            Ok(_) | Err(CommitError::Conflict(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Ids of deleted streams whose tables' time is over, some of them.
    pub(crate) async fn buried(&self) -> Result<Vec<Uuid>, Error> {
        let query = Query {
            pk: BURIED.to_owned(),
            from: None,
            to: None,
            direction: Direction::Forward,
            limit: limits::BURIED,
        };
        let page = self.inner.store.query(&query).await?;
        let over_us = self.inner.env.now_us() - self.inner.settings.pinned_us;
        let over = page.items.iter().filter(|(_, i)| i.int("at_us").is_none_or(|at| at <= over_us));
        Ok(over.filter_map(|(key, _)| Uuid::parse(&key.sk)).collect())
    }

    /// Deletes the table of a deleted stream, if its time is over. Answers how many files were deleted.
    pub(crate) async fn remove(&self, stream: &Uuid) -> Result<usize, Error> {
        let (store, now_us) = (&self.inner.store, self.inner.env.now_us());
        let Some(note) = store.get(&buried(stream), Consistency::Strong).await? else {
            return Ok(0);
        };
        let since_us = note.int("at_us").unwrap_or(0);
        if now_us - since_us < self.inner.settings.pinned_us {
            return Ok(0);
        }
        let generations =
            (0..self.generations(stream).await?).map(|n| generation_id(stream, n as usize));
        let tables: Vec<_> = generations.chain([*stream]).collect();
        let mut deleted = 0;
        for table in &tables {
            if let Some(item) = store.get(&head::key(table), Consistency::Strong).await? {
                deleted += self.remove_files(stream, &Head::from_item(&item)?).await?;
            }
            let owner = head::owner(table);
            loop {
                let names = store.list_blobs(&owner, None, store_limits::DELETE_BLOBS).await?;
                if names.is_empty() {
                    break;
                }
                store.delete_blobs(&names).await?;
            }
        }
        let heads = tables.iter().map(head::key);
        for key in heads.chain([stream_metadata::key(stream), buried(stream)]) {
            store.commit(Commit::one(Write::delete(key))).await?;
        }
        Ok(deleted)
    }

    async fn remove_files(&self, stream: &Uuid, head: &Head) -> Result<usize, Error> {
        let files = self.files(head);
        let Some(stem) = &head.stem else { return Ok(0) };
        let name = match load_metadata(&files, stem).await {
            Ok(metadata) => metadata.properties().get(STREAM).cloned(),
            // It is deleted last: the rest is gone.
            Err(e) if e.is_missing() => None,
            Err(e) => return Err(e),
        };
        let Some(name) = name else { return Ok(0) };
        if self.inner.source.id(&name).await?.is_some_and(|id| id != *stream) {
            return Ok(0);
        }
        self.forget_mirror(&files).await?;
        // The hint first: without it nobody begins to read. The metadata last, which says whose files they are.
        let current = crate::directory::metadata_file(stem);
        let (last, rest): (Vec<_>, Vec<_>) =
            files.everything().await?.into_iter().partition(|file| *file == current);
        let (hint, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|file| file == HINT);
        let mut deleted = files.delete(&hint).await?;
        // What says which generations there are lies beside their tables.
        if let Some((above, _)) = head.directory.split_once('/') {
            let above = Directory::new(&self.inner.root, &self.inner.root_uri, above);
            let above = Files::new(self.inner.objects.clone(), above);
            let said = above.everything().await?;
            let said = said.into_iter().filter(|file| {
                let metadata = file.split('/').next().is_some_and(|f| f.ends_with(".metadata"));
                let copy = !file.contains('/');
                metadata || copy
            });
            deleted += above.delete(&said.collect::<Vec<_>>()).await?;
        }
        deleted += files.delete(&rest).await?;
        Ok(deleted + files.delete(&last).await?)
    }
}
