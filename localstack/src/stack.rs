//! The stack: its parts put together, started, and taken apart in order.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
    serve::ListenerExt,
};
use serde_json::json;
use tidewheel_api::{Api, OperatorKey};
use tidewheel_engine::Engine;
use tidewheel_gateway::Gateway;
use tidewheel_store::{Env, embedded};
use tidewheel_tables::{Tables, maintain::Maintenance};
use tokio::{
    net::{TcpListener, lookup_host},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    catalogue::Published,
    declarations::{self, DeclareError},
    guard::Guard,
    landing::landing,
    operator::OperatorFile,
    options::{Serve, StoreKind},
    place::Place,
    rounds, schedule,
    socket::{Sockets, is_upgrade},
};

/// Why the stack did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the data folder.
    #[error(
        "the data folder {} is in use by another tidewheel process{holder}: stop it, or name another folder with --data",
        folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process's id after a space, if it is known.
        holder: String,
    },
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used: {source}", folder.display())]
    Data {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store in the data folder cannot be opened.
    #[error(transparent)]
    Store(#[from] embedded::OpenError),
    /// The keys of encrypted streams cannot be had, or are the wrong ones.
    #[error("the key file {} cannot be used: {why}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The options name no table or no bucket, or the environment says something that cannot be.
    #[error("{0}: --store dynamodb needs --table and --bucket, or their variables")]
    Environment(tidewheel_cloud::EnvironmentError),
    /// The deployed store cannot be opened.
    #[error(transparent)]
    Open(#[from] tidewheel_cloud::OpenError),
    /// The store cannot be read.
    #[error(transparent)]
    Engine(#[from] tidewheel_engine::Error),
    /// The deployed store is not there, or not for us.
    #[error(transparent)]
    Unusable(#[from] tidewheel_cloud::Unusable),
    /// The bucket cannot be used for tables.
    #[error(transparent)]
    Objects(#[from] tidewheel_cloud::ObjectsError),
    /// The streams of a file cannot be declared.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// The address is one that other machines can reach.
    #[error(
        "{0} can be reached by other machines, and there is no API key, so that nobody would be asked who they are: \
         make one with `tidewheel keys create --grant 'admin:*'` (and the same --data or --store), listen on 127.0.0.1, \
         or add --insecure-listen if everybody who reaches it may read and write everything"
    )]
    Exposed(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
}

impl StartError {
    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            StartError::InUse { .. } | StartError::Store(embedded::OpenError::InUse { .. }) => 3,
            StartError::Exposed(_)
            | StartError::Environment(_)
            | StartError::Open(_)
            | StartError::Declare(_) => 2,
            _ => 1,
        }
    }
}

/// A running stack.
pub struct Stack {
    address: SocketAddr,
    engine: Engine,
    tables: Tables,
    gateway: Gateway,
    api: Api,
    closing: watch::Sender<bool>,
    server: JoinHandle<io::Result<()>>,
    tasks: Vec<JoinHandle<()>>,
    sockets_gone: mpsc::Receiver<Infallible>,
    drain: Duration,
    /// False if others publish the tables.
    seals: bool,
    place: Place,
    _operator: Option<OperatorFile>,
}

impl Stack {
    /// Opens the data folder, listens, and begins to serve.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left running or locked.
    pub async fn start(options: &Serve) -> Result<Self, StartError> {
        let (listener, exposed) = listen(options).await?;
        let listen_error = |source| StartError::Listen { address: options.listen.clone(), source };
        let address = listener.local_addr().map_err(listen_error)?;
        let place = Place::open(options).await?;
        let env = Env::system();
        let engine = Engine::new(Arc::clone(&place.store), env, place.settings.clone());
        place.check_keys(&engine).await?;
        if let Some(exposed) = exposed
            && !options.insecure_listen
            && !engine.has_credentials().await?
        {
            return Err(StartError::Exposed(exposed));
        }
        if let Some(file) = &options.declare {
            declarations::declare(&engine, file).await?;
        }
        let settings = tidewheel_gateway::Settings {
            max_replay: options.max_replay,
            max_backlog: options.max_backlog,
            tables_uri: Some(place.uri.clone()),
            // Where keys decide who sees which stream, a refusal names none.
            name_streams: !engine.has_credentials().await?,
            ..Default::default()
        };
        let gateway = Gateway::new(engine.clone(), settings);
        let settings = tidewheel_api::Settings {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_body_bytes: options.max_body_bytes,
            // With its last key deleted, what others can reach is closed and not open.
            open_without_keys: exposed.is_none() || options.insecure_listen,
            operator: place.folder().map(|_| OperatorKey::new(&engine)),
            ..Default::default()
        };
        let operator = match (place.folder(), &settings.operator) {
            (Some(folder), Some(key)) => {
                let file =
                    OperatorFile::write(folder, &format!("http://{}", reachable(address)), key);
                Some(file.map_err(|source| StartError::Data { folder: folder.to_owned(), source })?)
            }
            _ => None,
        };
        let api = Api::new(engine.clone(), settings);

        let (closing, closed) = watch::channel(false);
        let (open, sockets_gone) = mpsc::channel(1);
        let front = Front {
            guard: Guard::new(address.ip().to_canonical().is_loopback(), &options.allow_origin),
            sockets: Sockets::new(gateway.clone(), closed.clone(), open),
            api: api.clone(),
        };
        let router = tidewheel_api::router(api.clone())
            .route("/", get(landing))
            .route("/stats", get(stats).with_state(gateway.clone()));
        let router = tidewheel_api::guarded(&api, router)
            .layer(middleware::from_fn_with_state(front, front_door));
        let server = tokio::spawn(serve(listener, router, closed.clone()));

        let settings = tidewheel_tables::Settings {
            publish_encrypted: options.publish_encrypted,
            catalogue: place.catalogue.clone(),
            ..Default::default()
        };
        let root = object_store::path::Path::default();
        let tables = Tables::new(&engine, Arc::clone(&place.objects), root, &place.uri, settings);

        api.show(Arc::new(Published { engine: engine.clone(), tables: tables.clone() }));
        let sealed = tables.clone();
        let seal = schedule::every("seal", options.seal_every, closed.clone(), move || {
            rounds::seal(sealed.clone())
        });
        let (maintenance, shared) = (Maintenance::new(&engine, &tables), place.shared);
        let flushed = tables.clone();
        let flush_every =
            if options.seal_every.is_zero() { Duration::ZERO } else { rounds::FLUSHES_EVERY };
        let flush = schedule::every("flush", flush_every, closed.clone(), move || {
            rounds::flush(flushed.clone())
        });
        // Whoever publishes looks after what is published.
        let of_tables = |period| if options.seal_every.is_zero() { Duration::ZERO } else { period };
        let compacted = maintenance.clone();
        let compact_every = of_tables(options.compact_every);
        let compact = schedule::every("compact", compact_every, closed.clone(), move || {
            rounds::compact(compacted.clone())
        });
        let cleaned = maintenance.clone();
        let clean_every = of_tables(options.clean_every);
        let clean = schedule::every("clean", clean_every, closed.clone(), move || {
            rounds::clean(cleaned.clone())
        });
        let maintain =
            schedule::every("maintain", options.maintain_every, closed.clone(), move || {
                rounds::maintain(maintenance.clone(), shared)
            });
        let timed = engine.clone();
        let timers_every = if shared { rounds::SHARED_TIMERS_EVERY } else { rounds::TIMERS_EVERY };
        let timers = schedule::every("timers", timers_every, closed.clone(), move || {
            rounds::fire(timed.clone())
        });
        let accepted = api.clone();
        let control =
            schedule::every("control", rounds::CONTROL_EVERY, closed.clone(), move || {
                rounds::control(accepted.clone())
            });
        let mut tasks = vec![control, seal, flush, compact, clean, maintain, timers];
        if place.shared {
            let followed = engine.clone();
            tasks.push(schedule::every("follow", options.follow_every, closed, move || {
                rounds::follow(followed.clone())
            }));
        }
        Ok(Self {
            address,
            engine,
            tables,
            gateway,
            api,
            closing,
            server,
            tasks,
            sockets_gone,
            drain: options.drain_seconds,
            seals: !(place.shared && options.seal_every.is_zero()),
            place,
            _operator: operator,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the data is: the folder, or the deployed store's names.
    pub fn data(&self) -> &str {
        &self.place.data
    }

    /// Where the published tables are: a folder, or a part of the bucket.
    pub fn tables_place(&self) -> &str {
        &self.place.tables
    }

    /// The tables that are published.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The engine that is served.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The gateway that is served.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Requests that are being served.
    pub fn in_flight(&self) -> u64 {
        self.api.in_flight()
    }

    /// The first step of [`Stack::stop`]: `/health` answers 503, and pops that wait answer that there is nothing.
    pub fn drain(&self) {
        self.api.drain();
    }

    /// Ends as a signal to stop would have it: no new connections, waiting pops answer at once, requests in flight
    /// finish, sockets close with 1001, and what is new is sealed. What is not done after the drain time is cut.
    pub async fn stop(self) {
        let Self { engine, gateway, api, tables, drain, seals, place, .. } = self;
        let Self { closing, server, tasks, mut sockets_gone, .. } = self;
        let deadline = Instant::now() + drain;
        tracing::info!(requests = api.in_flight(), "stopping");
        api.drain();
        closing.send_replace(true);
        let abort = server.abort_handle();
        match timeout_at(deadline, server).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the server ended with an error"),
            Ok(Err(error)) => tracing::error!(%error, "the server panicked"),
            Err(_) => {
                abort.abort();
                tracing::warn!(requests = api.in_flight(), "requests were cut at the deadline");
            }
        }
        // All senders are gone when the last connection is.
        if timeout_at(deadline, sockets_gone.recv()).await.is_err() {
            tracing::warn!("sockets were cut at the deadline");
        }
        for task in tasks {
            let abort = task.abort_handle();
            if timeout_at(deadline, task).await.is_err() {
                abort.abort();
                tracing::warn!("a scheduled task was cut at the deadline");
            }
        }
        // Cut or failed, it goes on at the next start from what is committed.
        let last_seal = async { !seals || schedule::run("seal", rounds::seal(tables)).await };
        if timeout_at(deadline, last_seal).await.is_err() {
            tracing::warn!("the last seal was cut at the deadline");
        }
        // The store first, then the lock on the folder.
        drop((api, gateway, engine));
        drop(place);
        tracing::info!("stopped");
    }
}

/// What every request passes first.
#[derive(Clone)]
struct Front {
    guard: Guard,
    sockets: Sockets,
    api: Api,
}

async fn front_door(State(front): State<Front>, request: Request, next: Next) -> Response {
    if let Some(why) = front.guard.refusal(request.headers(), request.uri()) {
        return (StatusCode::FORBIDDEN, Json(json!({"error": why}))).into_response();
    }
    if is_upgrade(&request) {
        let (headers, uri) = (request.headers(), request.uri());
        if let Err(refused) = front.api.admit_socket(headers, uri.path(), uri.query()).await {
            return *refused;
        }
        front.sockets.upgrade(request)
    } else {
        next.run(request).await
    }
}

/// What sockets serve, and how busy it is.
async fn stats(State(gateway): State<Gateway>) -> Response {
    match gateway.stats().await {
        Ok(stats) => Json(stats).into_response(),
        Err(error) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            (status, Json(json!({"error": error.to_string()}))).into_response()
        }
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = listener.tap_io(|connection| {
        // Frames and answers are written whole, so there is nothing to wait for.
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
    });
    axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            let _ = closing.wait_for(|closing| *closing).await;
        })
        .await
}

/// Listens; answers the address that other machines can reach, if there is one.
async fn listen(options: &Serve) -> Result<(TcpListener, Option<SocketAddr>), StartError> {
    let failed = |source| StartError::Listen { address: options.listen.clone(), source };
    let addresses: Vec<SocketAddr> = lookup_host(&options.listen).await.map_err(failed)?.collect();
    let exposed = addresses.iter().find(|a| !a.ip().to_canonical().is_loopback()).copied();
    if let Some(exposed) = exposed
        && !options.insecure_listen
        && options.store == StoreKind::Embedded
        && !options.data.exists()
    {
        // There is no key where there is nothing, and a start that is refused makes nothing.
        return Err(StartError::Exposed(exposed));
    }
    let listener = TcpListener::bind(addresses.as_slice()).await.map_err(failed)?;
    Ok((listener, exposed))
}

/// The address by which this machine reaches what it listens on.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
