//! The published tables as the API's catalogue shows them.

use async_trait::async_trait;
use tidewheel_api::{Catalogue, CataloguePage, CatalogueTable};
use tidewheel_engine::Engine;
use tidewheel_tables::{Error, Tables};

/// The tables of an engine's streams.
pub(crate) struct Published {
    pub(crate) engine: Engine,
    pub(crate) tables: Tables,
}

#[async_trait]
impl Catalogue for Published {
    async fn tables(&self, after: Option<&str>, limit: usize) -> Result<CataloguePage, String> {
        let failed = |e: tidewheel_engine::Error| e.to_string();
        let streams = self.engine.streams(after, limit).await.map_err(failed)?;
        let next = streams.last().filter(|_| streams.len() == limit).cloned();
        let mut names = Vec::new();
        for stream in streams {
            match self.tables.location(&stream).await {
                Ok(location) if location.metadata.is_some() => names.push(stream),
                Ok(_) | Err(Error::StreamNotFound(_)) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(CataloguePage { names, next })
    }

    async fn table(&self, name: &str) -> Result<Option<CatalogueTable>, String> {
        match self.tables.metadata(name).await {
            Ok(found) => {
                Ok(found.map(|(location, metadata)| CatalogueTable { location, metadata }))
            }
            Err(Error::StreamNotFound(_)) => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }
}
