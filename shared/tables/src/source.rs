//! Where a sealer's records come from: the few things that a table needs of a stream.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use tidewheel_engine::{
    Configure, Declaration, Declared, Engine, Error as EngineError, Extent, PartitionId,
    PartitionInfo, Read, TABLE_GROUP, Uuid,
};

use crate::{Error, logs::Logs};

/// Partitions whose names are looked up at once.
const LOOKUPS: usize = 16;

/// Streams as a sealer sees them.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// The id of a stream, if it exists.
    async fn id(&self, stream: &str) -> Result<Option<Uuid>, Error>;
    /// True if the stream's records are encrypted at rest.
    async fn encrypted(&self, _stream: &str) -> Result<bool, Error> {
        Ok(false)
    }
    /// The generations of a stream that has declared columns, as they are at this moment.
    async fn logs(&self, stream: &str) -> Result<Option<Logs>, Error>;
    /// True if a stream is known to have declared columns. It may have since a moment ago.
    async fn has_logs(&self, stream: &str) -> Result<bool, Error> {
        Ok(self.declared(stream).await?.as_deref().and_then(Logs::of).is_some())
    }
    /// Makes a stream, unless it exists, and answers its id.
    async fn create(&self, stream: &str) -> Result<Uuid, Error>;
    /// What a stream has declared, if it has.
    async fn declared(&self, stream: &str) -> Result<Option<Arc<Declared>>, Error>;
    /// Declares a stream, which is made if it does not exist.
    async fn declare(&self, stream: &str, declaration: Declaration)
    -> Result<Arc<Declared>, Error>;
    /// Names of streams, in order, after one.
    async fn streams(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error>;
    /// Partitions that may have records which the table does not have.
    async fn ready(&self, stream: &str, limit: usize) -> Result<Vec<PartitionInfo>, Error>;
    /// Says that the table has everything below `tail`; if that is the end, the partition is no longer ready.
    async fn settle(&self, stream: &str, partition: &PartitionId, tail: u64)
    -> Result<bool, Error>;
    /// Reads records from an offset on.
    async fn read(
        &self,
        partition: &PartitionId,
        from: u64,
        records: usize,
        bytes: usize,
    ) -> Result<Read, Error>;
    /// How far a partition reaches.
    async fn extent(&self, partition: &PartitionId) -> Result<Option<Extent>, Error>;
}

#[async_trait]
impl Source for Engine {
    async fn id(&self, stream: &str) -> Result<Option<Uuid>, Error> {
        Ok(Engine::stream(self, stream).await?.map(|s| s.id))
    }

    async fn encrypted(&self, stream: &str) -> Result<bool, Error> {
        Ok(Engine::stream(self, stream).await?.is_some_and(|s| s.options.encryption_enabled))
    }

    async fn create(&self, stream: &str) -> Result<Uuid, Error> {
        if let Some(info) = Engine::stream(self, stream).await? {
            return Ok(info.id);
        }
        Ok(self.configure(stream, Configure::default()).await?.id)
    }

    async fn logs(&self, stream: &str) -> Result<Option<Logs>, Error> {
        Ok(self.declared_now(stream).await?.as_deref().and_then(Logs::of))
    }

    async fn declared(&self, stream: &str) -> Result<Option<Arc<Declared>>, Error> {
        Ok(Engine::declared(self, stream).await?)
    }

    async fn declare(
        &self,
        stream: &str,
        declaration: Declaration,
    ) -> Result<Arc<Declared>, Error> {
        match Engine::declare(self, stream, declaration).await {
            Err(EngineError::Differs { stream, .. }) => Err(Error::SchemaDiffers(stream)),
            Err(EngineError::Declare { stream, .. }) => Err(Error::TableExists(stream)),
            other => Ok(other?),
        }
    }

    async fn streams(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        Ok(Engine::streams(self, after, limit).await?)
    }

    async fn ready(&self, stream: &str, limit: usize) -> Result<Vec<PartitionInfo>, Error> {
        let ids = Engine::ready(self, stream, TABLE_GROUP, limit).await?;
        let names = ids.into_iter().map(|id| async move {
            match self.partition(&id).await {
                Ok(Some(info)) => Ok(info),
                Ok(None) => Err(Error::partition(&id)),
                Err(e) => Err(e.into()),
            }
        });
        futures_util::stream::iter(names).buffered(LOOKUPS).try_collect().await
    }

    async fn settle(
        &self,
        stream: &str,
        partition: &PartitionId,
        tail: u64,
    ) -> Result<bool, Error> {
        Ok(Engine::settle(self, stream, TABLE_GROUP, partition, tail).await?)
    }

    async fn read(
        &self,
        partition: &PartitionId,
        from: u64,
        records: usize,
        bytes: usize,
    ) -> Result<Read, Error> {
        match Engine::read(self, partition, from, records, bytes).await {
            Err(EngineError::PartitionNotFound) => Err(Error::partition(partition)),
            other => Ok(other?),
        }
    }

    async fn extent(&self, partition: &PartitionId) -> Result<Option<Extent>, Error> {
        Ok(Engine::extent(self, partition).await?)
    }
}
