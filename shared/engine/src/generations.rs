//! The life of a declared stream's log: its schema changes, it ends, and it goes on.
//!
//! Each of these is one transaction on two heads: the stream's record takes a new book, and the partition's head the
//! next epoch, pinned to the tail that the book names as the seam. So every row lies in the generation whose schema it
//! was checked against, no row falls between two, and a writer that was frozen in between is refused. A lost reply is
//! resolved by the book's name in the record.

use std::sync::Arc;

use tidewheel_schema::Schema;
use tidewheel_store::{BlobName, Change, Commit, CommitError, Condition, Write};

use crate::{
    Declared, Engine, Error, Generation, Retirement,
    declare::{check_order, owner},
    head::Head,
    keys, limits,
};

/// Something that happens to a declared stream: from what it is and how far it reaches, to what it becomes. `None` if
/// it is so already.
type Step<'a> = &'a (dyn Fn(&Declared, Reach) -> Result<Option<Declared>, Error> + Sync);

/// How far the log reaches.
#[derive(Clone, Copy)]
struct Reach {
    tail: u64,
    /// The time of the last row, µs; `None` if there is none.
    last_us: Option<i64>,
    now_us: i64,
}

impl Engine {
    /// Gives a stream another schema: a new generation begins at exactly the tail. Columns may come and go and become
    /// nullable or not; the type of a column is fixed for ever, also of one that is gone. The same schema again does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::NotDeclared`]; [`Error::Migrate`] says what cannot change; [`Error::Retired`].
    pub async fn migrate(
        &self,
        name: &str,
        schema: Option<Arc<Schema>>,
        sort_by: Vec<String>,
    ) -> Result<Arc<Declared>, Error> {
        check_order(schema.as_deref(), &sort_by)?;
        self.step(name, &|is, reach| {
            if let Some(retired) = is.retired {
                return Err(retired_error(name, retired));
            }
            let columns = |s: &Option<Arc<Schema>>| s.as_ref().map(|s| s.columns().to_vec());
            if columns(&schema) == columns(&is.declaration.schema)
                && sort_by == is.declaration.sort_by
            {
                return Ok(None);
            }
            check_types(is, schema.as_deref())?;
            let mut next = is.clone();
            end(&mut next, reach);
            begin(&mut next, schema.clone(), sort_by.clone(), reach)?;
            Ok(Some(next))
        })
        .await
    }

    /// Ends a stream: it takes no more rows, and what it has stays readable. A retired stream stays as it is.
    ///
    /// # Errors
    /// [`Error::NotDeclared`].
    pub async fn retire(&self, name: &str) -> Result<Arc<Declared>, Error> {
        self.step(name, &|is, reach| {
            if is.retired.is_some() {
                return Ok(None);
            }
            let mut next = is.clone();
            end(&mut next, reach);
            next.epoch += 1;
            next.retired = Some(Retirement { at_us: reach.now_us, end: reach.tail });
            Ok(Some(next))
        })
        .await
    }

    /// Lets a retired stream go on: the next generation begins at exactly its end, with the same schema, and no publisher
    /// has a mark. A stream that is not retired stays as it is.
    ///
    /// # Errors
    /// [`Error::NotDeclared`].
    pub async fn revive(&self, name: &str) -> Result<Arc<Declared>, Error> {
        self.step(name, &|is, reach| {
            if is.retired.is_none() {
                return Ok(None);
            }
            let mut next = is.clone();
            next.retired = None;
            next.life += 1;
            let Declared { declaration, .. } = is;
            begin(&mut next, declaration.schema.clone(), declaration.sort_by.clone(), reach)?;
            Ok(Some(next))
        })
        .await
    }

    async fn step(&self, name: &str, step: Step<'_>) -> Result<Arc<Declared>, Error> {
        Error::check_name("the stream's name", name)?;
        // What was sent and not answered: one of it may be there, and others may have gone on from it.
        let mut sent: Vec<Declared> = Vec::new();
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let record = self.reread_stream(name).await?;
            let record = record.ok_or_else(|| Error::StreamNotFound(name.to_owned()))?;
            let Some(is) = record.declared.clone() else {
                return Err(Error::NotDeclared(name.to_owned()));
            };
            if sent.iter().any(|s| has_come(&is, s)) {
                return Ok(is);
            }
            let partition = is.partition();
            // Our own appends wait, so that the seam is not missed again and again.
            let warm = self.warm(&partition);
            let _view = warm.append.lock().await;
            let head = if is.declaration.log { self.head(&partition).await? } else { None };
            if is.declaration.log && head.as_ref().is_none_or(|h| h.epoch != is.epoch) {
                // Another process has changed both since the record was read.
                continue;
            }
            let reach = reach(head.as_deref(), self.env().now_us());
            let Some(mut next) = step(&is, reach)? else { return Ok(is) };
            next.revision += 1;
            let (next, book) = next.into_book(self)?;
            let mut record_write = Write::update(keys::stream(name), next.changes()?);
            record_write.conditions = is.takes(&book);
            let mut writes = vec![record_write];
            if head.is_some() {
                let changes = vec![Change::Set("epoch".into(), next.epoch.into())];
                let seam = Write::update(keys::head(&partition), changes)
                    .when(Condition::Equals("epoch".into(), is.epoch.into()))
                    .when(Condition::Equals("tail".into(), (reach.tail as i64).into()));
                writes.push(seam);
            }
            match self.commit(Commit::all(writes).with_blob(book)).await {
                Ok(_) => {
                    // Nobody can make the old book count again: its record's revision is gone.
                    let old = BlobName::new(owner(&is.stream), is.book.as_str());
                    let _ = self.inner.store.delete_blobs(&[old]).await;
                    // From here on this process appends under the new epoch.
                    if next.declaration.log {
                        self.head(&partition).await?;
                    }
                    self.reread_stream(name).await?;
                    return Ok(Arc::new(next));
                }
                Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Unknown(_)) => {
                    sent.push(next);
                    self.back_off(attempt).await;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}

/// True if a stream has come by a state that was sent to it.
fn has_come(is: &Declared, sent: &Declared) -> bool {
    let at = sent.generations.len().saturating_sub(1);
    let same = |(a, b): (&Generation, &Generation)| {
        a.start == b.start && a.schema == b.schema && (b.end.is_none() || a.end == b.end)
    };
    is.revision >= sent.revision
        && is.generations.get(at).zip(sent.generations.get(at)).is_some_and(same)
}

fn reach(head: Option<&Head>, now_us: i64) -> Reach {
    let tail = head.map_or(0, |h| h.tail);
    Reach { tail, last_us: head.map(Head::last_us).filter(|_| tail > 0), now_us }
}

/// The error of a stream that takes no more rows.
pub(crate) fn retired_error(name: &str, retired: Retirement) -> Error {
    Error::Retired { stream: name.to_owned(), at_us: retired.at_us, end: retired.end }
}

/// Ends the live generation at the tail.
fn end(next: &mut Declared, reach: Reach) {
    if let Some(live) = next.generations.last_mut() {
        live.end = Some(reach.tail);
        live.end_us = reach.last_us.filter(|_| reach.tail > live.start);
    }
}

/// Begins a generation at the tail.
fn begin(
    next: &mut Declared,
    schema: Option<Arc<Schema>>,
    sort_by: Vec<String>,
    reach: Reach,
) -> Result<(), Error> {
    let number = next.generations.len() + 1;
    if number > limits::GENERATIONS {
        return Err(Error::Limit {
            what: "generations of a stream",
            got: number,
            limit: limits::GENERATIONS,
        });
    }
    next.epoch += 1;
    next.declaration.schema.clone_from(&schema);
    next.declaration.sort_by.clone_from(&sort_by);
    next.generations.push(Generation {
        name: format!("{}-v{number}", next.name),
        schema,
        sort_by,
        start: reach.tail,
        start_us: reach.last_us,
        end: None,
        end_us: None,
    });
    Ok(())
}

/// Refuses a schema that gives a column another type than it has, or had.
fn check_types(is: &Declared, schema: Option<&Schema>) -> Result<(), Error> {
    let refuse = |detail: String| Err(Error::Migrate { stream: is.name.clone(), detail });
    if schema.is_some() != is.declaration.schema.is_some() {
        return refuse("a schema neither comes nor goes with a migration".to_owned());
    }
    for column in schema.iter().flat_map(|s| s.columns()) {
        for generation in is.generations.iter().rev() {
            let old = generation.schema.iter().flat_map(|s| s.columns());
            let old = old.filter(|c| c.name == column.name).find(|c| c.kind != column.kind);
            if let Some(old) = old {
                return refuse(format!(
                    "column `{}` is of type {} in `{}`, and a column's type is fixed for ever, not {}",
                    column.name,
                    old.kind.name(),
                    generation.name,
                    column.kind.name(),
                ));
            }
        }
    }
    Ok(())
}
