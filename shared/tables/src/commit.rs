//! Making a version count: the one conditional write of the head, and what became of it.
//!
//! Sealers, compactions and the collector write the same head, each on the condition that nobody has since it was read.
//! Whoever is second has changed nothing and starts from what is there.

use iceberg::spec::DataFile;
use tidewheel_engine::Uuid;
use tidewheel_store::Blob;

use crate::{
    Error, directory,
    files::Files,
    head::{self, Flipped, Head},
    snapshot::{self, Keep},
    tables::Tables,
};

/// A write of the head.
pub(crate) struct Flip<'a> {
    /// The commit that the head was read at.
    pub(crate) before: &'a Option<String>,
    pub(crate) commit_id: &'a str,
    pub(crate) after: &'a Head,
    /// A blob that the head names.
    pub(crate) blob: Option<Blob>,
}

impl Tables {
    /// What metadata remembers, by the settings.
    pub(crate) fn keep(&self) -> Keep {
        let settings = &self.inner.settings;
        Keep {
            count: settings.snapshots,
            age_ms: settings.snapshot_age_us / 1000,
            pin_ms: settings.pinned_us / 1000,
        }
    }

    /// Writes the head. Answers false if another was first.
    pub(crate) async fn flip(
        &self,
        stream: (&Uuid, &str),
        files: &Files,
        flip: Flip<'_>,
    ) -> Result<bool, Error> {
        let (store, env) = (&*self.inner.store, &self.inner.env);
        let Flip { before, commit_id, after, blob } = flip;
        match head::flip(store, env, stream, before, commit_id, after, blob).await? {
            Flipped::Done => Ok(true),
            Flipped::Other(current) => {
                // Ours may have landed, its reply lost, and another on top of it.
                let current = current.map(|item| Head::from_item(&item)).transpose()?;
                let Some(stem) = current.and_then(|head| head.stem) else { return Ok(false) };
                let metadata = snapshot::load_metadata(files, &stem).await?;
                Ok(snapshot::has_commit(&metadata, commit_id))
            }
        }
    }
}

/// Refuses data files that the collector may have taken already: it raises its mark before it deletes anything, and
/// what was made before the mark and is not named then is gone.
pub(crate) fn check_mark(added: &[DataFile], head: &Head) -> Result<(), ()> {
    let made = |file: &DataFile| directory::made_us(file.file_path()).unwrap_or(0);
    // To the millisecond, as names are.
    let gone =
        added.iter().any(|file| head.mark_us > 0 && made(file) <= head.mark_us / 1000 * 1000);
    if gone { Err(()) } else { Ok(()) }
}
