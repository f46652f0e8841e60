//! What is to be done about streams is done here: they are made, served, stopped, retired, migrated.
//!
//! An operation that was accepted is carried out by whoever comes next: the request that brought it, one that asks for it,
//! one that brings another, or a round of the server. Each step can be taken twice, by two processes at once, and after
//! any death; what ends an operation is one transaction, and one of them takes it.

use std::sync::Arc;

use tidewheel_engine::{Declared, Error, ManagedStream, Operation};

use super::{decide::Migration, definition::Definition, fault::Fault};
use crate::Api;

/// Operations that one round takes up.
const ROUND: usize = 100;

/// Why an operation did not come to its end.
enum Stopped {
    /// It may come to it later.
    Later(Error),
    /// It never will, as things are.
    Failed(String),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        match error.is_transient() {
            true => Self::Later(error),
            false => Self::Failed(error.to_string()),
        }
    }
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Self {
        Self::Failed(format!("{fault:?}"))
    }
}

/// What an operation has made of its stream.
struct Reached {
    state: &'static str,
    stream_id: Option<String>,
    definition: Option<String>,
    begins: bool,
}

impl Reached {
    fn at(state: &'static str) -> Self {
        Self { state, stream_id: None, definition: None, begins: false }
    }
}

impl Api {
    /// Carries out what was accepted and is not finished. Answers how many operations came to an end.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn finish_operations(&self) -> Result<usize, Error> {
        let mut finished = 0;
        for operation in self.engine().pending_operations(ROUND).await? {
            if self.carry_out(operation).await?.is_final() {
                finished += 1;
            }
        }
        Ok(finished)
    }

    /// Carries an operation out as far as it goes now. Answers it as it is then.
    pub(super) async fn carry_out(&self, mut operation: Operation) -> Result<Operation, Error> {
        if operation.is_final() {
            return Ok(operation);
        }
        let engine = self.engine();
        engine.begin(&mut operation).await?;
        let Some(stream) = engine.managed(&operation.name).await? else { return Ok(operation) };
        if stream.pending.as_ref() != Some(&operation.id) {
            // Somebody else has ended it.
            return Ok(engine.operation(&operation.id).await?.unwrap_or(operation));
        }
        let done = if operation.kind == "migration" {
            self.migrate(&stream, &operation).await
        } else {
            self.reconcile(&stream, &operation).await
        };
        match done {
            Ok(reached) => {
                let ended = engine.finish(&operation, None, |stream| {
                    stream.state = reached.state.to_owned();
                    if let Some(id) = &reached.stream_id {
                        stream.stream_id = Some(id.clone());
                    }
                    if let Some(definition) = &reached.definition {
                        stream.definition.clone_from(definition);
                    }
                    if reached.begins {
                        stream.generation = Some(stream.generation.unwrap_or(0) + 1);
                    }
                });
                ended.await
            }
            Err(Stopped::Later(error)) => {
                tracing::warn!(%error, operation = operation.id, "an operation waits for the store");
                Ok(operation)
            }
            Err(Stopped::Failed(why)) => {
                tracing::warn!(why, operation = operation.id, "an operation failed");
                let failed = |stream: &mut ManagedStream| stream.state = "error".to_owned();
                engine.finish(&operation, Some("transition_failed"), failed).await
            }
        }
    }

    /// Brings a stream to where it is wanted.
    async fn reconcile(
        &self,
        stream: &ManagedStream,
        operation: &Operation,
    ) -> Result<Reached, Stopped> {
        let engine = self.engine();
        let name = &stream.name;
        let definition = Definition::stored(&stream.definition)?;
        let there = engine.declared(name).await?;
        if let Some(there) = &there {
            check_identity(stream, there)?;
        }
        match stream.desired.as_str() {
            "serving" => {
                if there.is_none() && (stream.stream_id.is_some() || !definition.creates) {
                    let why = "there is no such stream, and it is not to be made".to_owned();
                    return Err(Stopped::Failed(why));
                }
                let declared = engine.declare(name, definition.declaration()?).await?;
                check_identity(stream, &declared)?;
                let stream_id = declared.stream.to_string();
                // Its id is known before anything shows it, so that no death lets another be made.
                engine.bind(operation, &stream_id).await?;
                let stream_id = Some(stream_id);
                Ok(Reached { stream_id, begins: true, ..Reached::at("serving") })
            }
            "retired" => {
                engine.retire(name).await?;
                Ok(Reached::at("retired"))
            }
            _ => {
                if there.is_none() && stream.stream_id.is_some() {
                    return Err(Stopped::Failed("the stream is gone".to_owned()));
                }
                Ok(Reached::at("stopped"))
            }
        }
    }

    /// Gives a stream another schema.
    async fn migrate(
        &self,
        stream: &ManagedStream,
        operation: &Operation,
    ) -> Result<Reached, Stopped> {
        let migration = Migration::read(&operation.target)?;
        let definition = Definition::stored(&stream.definition)?;
        let wanted = definition.migrated(&migration.schema, migration.sort_by.clone())?;
        let there = self.engine().declared(&stream.name).await?;
        let there = there.ok_or_else(|| Stopped::Failed("the stream is gone".to_owned()))?;
        check_identity(stream, &there)?;
        // The same schema again does nothing.
        let schema = Some(Arc::new(wanted.compile()?));
        self.engine().migrate(&stream.name, schema, migration.sort_by).await?;
        Ok(Reached { definition: Some(wanted.to_text()), ..Reached::at("stopped") })
    }
}

fn check_identity(stream: &ManagedStream, there: &Declared) -> Result<(), Stopped> {
    match &stream.stream_id {
        Some(id) if *id != there.stream.to_string() => {
            Err(Stopped::Failed("the stream of this name is another one now".to_owned()))
        }
        _ => Ok(()),
    }
}
