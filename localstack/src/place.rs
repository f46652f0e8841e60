//! Where everything is kept: a data folder of this machine, or the deployed store.
//!
//! A folder has one owner at a time, and its lock keeps a second process out. The deployed store is a table and a bucket
//! that any number of processes use at once: servers like this one, and functions. Nothing of it is on this machine, so
//! that a server on it may be killed, moved and multiplied.

use std::{path::Path, sync::Arc, time::Duration};

use object_store::{ObjectStore, local::LocalFileSystem};
use tidewheel_cloud::{Environment, Fanout, Glue, environment};
use tidewheel_engine::{Doorbell, Engine, KeyProvider, Settings};
use tidewheel_store::{Embedded, Store, embedded};
use tidewheel_tables::Catalogue;
use tokio::time::Instant;

use crate::{
    StartError,
    data::Data,
    key_file::KeyFile,
    options::{Serve, StoreKind},
};

/// How long a start waits for an earlier stack of this process to let go of the folder and the store.
const LET_GO: Duration = Duration::from_secs(5);

/// How soon a waiting pop looks again where other processes push as well. Each look waits twice as long as the one
/// before.
const POLL_FIRST: Duration = Duration::from_millis(50);

/// An open place.
pub(crate) struct Place {
    pub(crate) store: Arc<dyn Store>,
    /// The engine's settings that the place decides.
    pub(crate) settings: Settings,
    /// The file with the keys, to be compared with what the store needs.
    key_file: Option<Arc<KeyFile>>,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// What mirrors the tables.
    pub(crate) catalogue: Option<Arc<dyn Catalogue>>,
    /// What readers of tables put before a file's path in `objects`.
    pub(crate) uri: String,
    /// Where the data is, for a person.
    pub(crate) data: String,
    /// Where the tables are, for a person.
    pub(crate) tables: String,
    /// True if other processes use the store as well.
    pub(crate) shared: bool,
    /// Locked as long as the place is open.
    locked: Option<Data>,
}

impl Place {
    /// Opens what the options name.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) async fn open(options: &Serve) -> Result<Self, StartError> {
        match options.store {
            StoreKind::Embedded => Self::local(options).await,
            StoreKind::Dynamodb => Self::deployed(options).await,
        }
    }

    async fn local(options: &Serve) -> Result<Self, StartError> {
        let data = open_data(&options.data).await?;
        let store: Arc<dyn Store> = Arc::new(open_store(&data.store).await?);
        let keys = KeyFile::open(&data.folder, options.encryption_key_file.as_deref())?;
        let objects = LocalFileSystem::new_with_prefix(&data.folder)
            .map_err(|e| StartError::Data { folder: data.folder.clone(), source: e.into() })?
            .with_fsync(true);
        let settings = Settings {
            default_subscription: options.default_subscription_mode.into(),
            keys: Some(Arc::clone(&keys) as Arc<dyn KeyProvider>),
            ..Settings::default()
        };
        Ok(Self {
            store,
            settings,
            key_file: Some(keys),
            objects: Arc::new(objects),
            catalogue: None,
            uri: format!("file://{}", data.folder.display()),
            data: data.folder.display().to_string(),
            tables: data.tables.display().to_string(),
            shared: false,
            locked: Some(data),
        })
    }

    async fn deployed(options: &Serve) -> Result<Self, StartError> {
        let environment = environment(options)?;
        let opened = tidewheel_cloud::open(&environment).await?;
        tidewheel_cloud::check(&environment, &opened).await?;
        let objects = tidewheel_cloud::objects(&environment, &opened)?;
        // A master key in the key service is everybody's who uses this store, so it goes before a file of this machine.
        let kms = tidewheel_cloud::keys::keys(&environment, &opened);
        let key_file = match &options.encryption_key_file {
            Some(file) if kms.is_none() => Some(KeyFile::open(Path::new("."), Some(file))?),
            _ => None,
        };
        let settings = Settings {
            default_subscription: options.default_subscription_mode.into(),
            poll_first: POLL_FIRST.min(options.poll_every),
            poll_every: options.poll_every,
            keys: kms.or_else(|| key_file.clone().map(|keys| keys as Arc<dyn KeyProvider>)),
            // The managed gateway's clients hear of what is pushed here, as ours hear of what is pushed elsewhere.
            doorbell: environment
                .doorbell
                .as_deref()
                .map(|name| Arc::new(Fanout::new(&opened.sdk, name)) as Arc<dyn Doorbell>),
            ..Settings::default()
        };
        let region = opened.sdk.region().map(ToString::to_string).unwrap_or_default();
        let uri = tidewheel_cloud::objects_uri(&environment);
        let (table, bucket) = (&environment.table, &environment.bucket);
        Ok(Self {
            store: opened.store,
            settings,
            key_file,
            objects: Arc::new(objects),
            catalogue: environment
                .glue_database
                .as_deref()
                .map(|database| Arc::new(Glue::new(&opened.sdk, database)) as Arc<dyn Catalogue>),
            data: format!("table {table} and bucket {bucket}, region {region}"),
            tables: format!("{uri}/tables"),
            uri,
            shared: true,
            locked: None,
        })
    }

    /// The data folder, if it is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.locked.as_ref().map(|data| data.folder.as_path())
    }

    /// Compares the keys with those that the store needs.
    ///
    /// # Errors
    /// [`StartError::Keys`] if none of them opens anything of what is stored.
    pub(crate) async fn check_keys(&self, engine: &Engine) -> Result<(), StartError> {
        match &self.key_file {
            Some(keys) => keys.check(engine).await,
            None => Ok(()),
        }
    }
}

/// The environment as the options have it: each of them is a variable as well.
fn environment(options: &Serve) -> Result<Environment, StartError> {
    let environment = Environment::from_lookup(|name| match name {
        environment::TABLE => options.table.clone(),
        environment::BUCKET => options.bucket.clone(),
        // These are options of another type, and were read with them.
        environment::SUBSCRIPTION_MODE | environment::POLL_EVERY => None,
        other => std::env::var(other).ok(),
    });
    environment.map_err(StartError::Environment)
}

/// Opens a data folder. A lock that this process itself still has is let go of shortly: it is that of an earlier stack, or
/// of a child that was forked while that one ran and has not yet become another program.
async fn open_data(folder: &Path) -> Result<Data, StartError> {
    let own = std::process::id().to_string();
    let deadline = Instant::now() + LET_GO;
    loop {
        match Data::open(folder) {
            Err(StartError::InUse { holder, .. })
                if holder.trim() == own && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            opened => return opened,
        }
    }
}

/// Opens the store of a folder whose lock is ours. Whoever still has the store open can only be an earlier stack of this
/// process, whose last task is about to end.
async fn open_store(folder: &Path) -> Result<Embedded, embedded::OpenError> {
    let deadline = Instant::now() + LET_GO;
    loop {
        match Embedded::open(folder, embedded::Options::default()) {
            Err(embedded::OpenError::InUse { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            opened => return opened,
        }
    }
}
