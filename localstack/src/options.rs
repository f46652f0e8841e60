//! What `tidewheel` is told: the command line, and an environment variable for each option.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tidewheel_engine::SubscriptionMode;

/// The streaming database on one machine.
#[derive(Debug, Parser)]
#[command(name = "tidewheel", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum Command {
    /// Run the whole stack: HTTP API, WebSockets, scheduled sealing and retention
    #[command(after_help = AFTER_HELP)]
    Serve(Box<Serve>),
    /// Load a Parquet or Arrow file into a declared stream, while no server runs on the data folder
    Ingest(Ingest),
    /// Make, list, rotate, disable and delete API keys, of a server that runs or of one that does not
    #[command(after_help = KEYS_HELP)]
    Keys(Keys),
}

const KEYS_HELP: &str = "\
A grant is <action>:<pattern>. Actions are read, publish, consume, control and admin, which contains the others; a pattern is
the name of a stream, or the beginning of names and a `*`. Examples: publish:orders, read:sensor.*, admin:*

The first key should be granted admin:*, because from then on the server asks everybody for one.";

/// Options of `keys`.
#[derive(Args, Clone, Debug)]
pub struct Keys {
    /// What to do with them
    #[command(subcommand)]
    pub command: KeysCommand,

    /// The folder of the server whose keys these are
    #[arg(long, env = "TIDEWHEEL_DATA", default_value = "data", value_name = "DIR", global = true)]
    pub data: PathBuf,

    /// Where the server stores everything
    #[arg(
        long,
        env = "TIDEWHEEL_STORE",
        default_value = "embedded",
        value_name = "STORE",
        global = true
    )]
    pub store: StoreKind,

    /// The deployed store's table
    #[arg(long, env = "TIDEWHEEL_TABLE", value_name = "NAME", global = true)]
    pub table: Option<String>,

    /// The deployed store's bucket
    #[arg(long, env = "TIDEWHEEL_BUCKET", value_name = "NAME", global = true)]
    pub bucket: Option<String>,
}

/// What to do with keys.
#[derive(Clone, Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key and show it, once: alone on the first line
    Create(NewKey),
    /// Show all keys, without what proves them
    List,
    /// Give a key another secret and show it, once
    Rotate {
        /// The key's id
        id: String,
        /// Seconds for which the secret before still counts
        #[arg(long, default_value_t = 0, value_name = "SECONDS")]
        overlap: u32,
    },
    /// Let a key count no longer, until it is enabled again
    Disable {
        /// The key's id
        id: String,
    },
    /// Let a key that was disabled count again
    Enable {
        /// The key's id
        id: String,
    },
    /// Delete a key
    Delete {
        /// The key's id
        id: String,
    },
}

/// A key to be made.
#[derive(Args, Clone, Debug)]
pub struct NewKey {
    /// A name for people
    #[arg(long, default_value = "", value_name = "NAME")]
    pub name: String,

    /// What it may do, as `<action>:<pattern>`; repeat it for more
    #[arg(long, required = true, value_name = "GRANT")]
    pub grant: Vec<String>,

    /// Days after which it counts no longer; never if not given
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub expires_days: Option<u32>,

    /// Requests that each process lets through a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests_per_second: Option<u32>,

    /// Bytes of request bodies that each process lets through a second
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes_per_second: Option<u64>,
}

const AFTER_HELP: &str = "\
SIGTERM and SIGINT drain: no new connections, waiting pops answer at once, requests in flight finish, sockets close
with 1001, what is new is sealed. A second signal ends at once. SIGKILL loses nothing that was acknowledged.

Exit status: 0 stopped as asked, 1 could not start or serve, 2 wrong options, 3 the data folder is in use.";

/// Options of `ingest`.
#[derive(Args, Clone, Debug)]
pub struct Ingest {
    /// The declared stream
    pub stream: String,

    /// The file: Parquet, an Arrow file or an Arrow stream, with the declared columns
    pub file: PathBuf,

    /// The server's data folder
    #[arg(long, env = "TIDEWHEEL_DATA", default_value = "data", value_name = "DIR")]
    pub data: PathBuf,
}

impl Ingest {
    /// The server's options that say where the data is.
    pub(crate) fn serve(&self) -> Serve {
        Serve { data: self.data.clone(), ..Serve::default() }
    }
}

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(
        long,
        env = "TIDEWHEEL_LISTEN",
        default_value = "127.0.0.1:6632",
        value_name = "HOST:PORT"
    )]
    pub listen: String,

    /// Listen on an address that other machines can reach, although there is no key, so that nobody is asked who they are
    ///
    /// Without this, such an address needs an API key (`tidewheel keys create`), and a loopback address takes only requests
    /// that name one as their host.
    #[arg(long, env = "TIDEWHEEL_INSECURE_LISTEN")]
    pub insecure_listen: bool,

    /// Web origins whose pages may use the API and the sockets from a browser, besides those on this machine
    ///
    /// A page opened from a file has the origin `null`. Several are separated by commas.
    #[arg(long, env = "TIDEWHEEL_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,

    /// Where everything is stored: in a folder of this machine, or in the deployed store
    ///
    /// The deployed store is a DynamoDB table and an S3 bucket, made from the template in infra/. Any number of servers
    /// and functions use it at once; the region and the credentials are the SDK's own (AWS_REGION and so on).
    #[arg(long, env = "TIDEWHEEL_STORE", default_value = "embedded", value_name = "STORE")]
    pub store: StoreKind,

    /// The deployed store's table
    #[arg(long, env = "TIDEWHEEL_TABLE", value_name = "NAME")]
    pub table: Option<String>,

    /// The deployed store's bucket: large blobs, and the tables' files
    #[arg(long, env = "TIDEWHEEL_BUCKET", value_name = "NAME")]
    pub bucket: Option<String>,

    /// Seconds between two looks of a pop that has waited for long, on the deployed store
    ///
    /// What is pushed through this server wakes it at once; this is for what others push.
    #[arg(long, env = "TIDEWHEEL_POLL_EVERY", default_value = "1", value_name = "SECONDS", value_parser = some_seconds)]
    pub poll_every: Duration,

    /// Seconds between two looks at the partitions that sockets follow, on the deployed store; 0 never looks
    ///
    /// What is pushed through this server reaches them at once; this is for what others push. One small read for each
    /// partition that is followed, however many follow it.
    #[arg(long, env = "TIDEWHEEL_FOLLOW_EVERY", default_value = "0.5", value_name = "SECONDS", value_parser = seconds)]
    pub follow_every: Duration,

    /// Folder for everything that is stored on this machine; made if it is not there
    #[arg(long, env = "TIDEWHEEL_DATA", default_value = "data", value_name = "DIR")]
    pub data: PathBuf,

    /// File with the master keys of streams that are encrypted at rest, the present key first
    ///
    /// Without this it is `encryption-keys` in the data folder, made when a stream is first encrypted. On the deployed
    /// store it must be named, and TIDEWHEEL_KMS_KEY, a key that stays in the key service, goes before it.
    #[arg(long, env = "TIDEWHEEL_ENCRYPTION_KEY_FILE", value_name = "FILE")]
    pub encryption_key_file: Option<PathBuf>,

    /// Publish the tables of streams that are encrypted at rest as well, as plain files
    #[arg(long, env = "TIDEWHEEL_PUBLISH_ENCRYPTED")]
    pub publish_encrypted: bool,

    /// Seconds between two rounds of publishing new records to the tables; 0 publishes only when stopping
    #[arg(long, env = "TIDEWHEEL_SEAL_EVERY", default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub seal_every: Duration,

    /// Seconds between two rounds of making few large files of the tables' many small ones; 0 never does
    ///
    /// A table that has nothing new costs one small read a round. Where nothing is published (--seal-every 0), nothing is
    /// compacted or cleaned.
    #[arg(long, env = "TIDEWHEEL_COMPACT_EVERY", default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub compact_every: Duration,

    /// Seconds between two rounds of forgetting the tables' old snapshots and deleting files that nothing names; 0 never
    /// does
    ///
    /// What a reader may have opened stays for an hour after something newer has followed it.
    #[arg(long, env = "TIDEWHEEL_CLEAN_EVERY", default_value = "900", value_name = "SECONDS", value_parser = seconds)]
    pub clean_every: Duration,

    /// Seconds between two rounds of deleting what the streams' retention allows; 0 deletes nothing
    #[arg(long, env = "TIDEWHEEL_MAINTAIN_EVERY", default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub maintain_every: Duration,

    /// Where a new consumer group begins when its first pop does not say
    #[arg(long, env = "DEFAULT_SUBSCRIPTION_MODE", default_value = "new", value_name = "MODE")]
    pub default_subscription_mode: Subscription,

    /// Largest request body, bytes
    #[arg(long, env = "TIDEWHEEL_MAX_BODY_BYTES", default_value_t = tidewheel_api::MAX_BODY_BYTES, value_name = "BYTES")]
    pub max_body_bytes: usize,

    /// Most rows that a socket may ask to have replayed; unbounded if not given
    #[arg(long, env = "TIDEWHEEL_MAX_REPLAY", value_name = "ROWS")]
    pub max_replay: Option<u64>,

    /// Rows by which a stream may outgrow a socket's reader before it is closed with 4429
    #[arg(long, env = "TIDEWHEEL_MAX_BACKLOG", default_value_t = tidewheel_gateway::limits::BACKLOG, value_name = "ROWS")]
    pub max_backlog: u64,

    /// A file of streams to declare: a JSON object from a name to a declaration. What is declared already stays
    #[arg(long, env = "TIDEWHEEL_DECLARE", value_name = "FILE")]
    pub declare: Option<PathBuf>,

    /// Seconds that stopping may take before whatever still runs is cut
    #[arg(long, env = "TIDEWHEEL_DRAIN_SECONDS", default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub drain_seconds: Duration,

    /// Which log lines to write to standard error: a level, or `target=level` pairs
    #[arg(long, env = "TIDEWHEEL_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,

    /// How log lines look
    #[arg(long, env = "TIDEWHEEL_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

impl Default for Serve {
    /// The defaults, on a free port, without looking at the environment.
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            insecure_listen: false,
            allow_origin: Vec::new(),
            store: StoreKind::Embedded,
            table: None,
            bucket: None,
            poll_every: Duration::from_secs(1),
            follow_every: Duration::from_millis(500),
            data: PathBuf::from("data"),
            encryption_key_file: None,
            publish_encrypted: false,
            seal_every: Duration::from_secs(10),
            compact_every: Duration::from_secs(60),
            clean_every: Duration::from_secs(900),
            maintain_every: Duration::from_secs(60),
            default_subscription_mode: Subscription::New,
            max_body_bytes: tidewheel_api::MAX_BODY_BYTES,
            max_replay: None,
            max_backlog: tidewheel_gateway::limits::BACKLOG,
            declare: None,
            drain_seconds: Duration::from_secs(10),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
        }
    }
}

/// Where a new group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subscription {
    /// With what is pushed from then on
    New,
    /// With the oldest record
    All,
}

impl From<Subscription> for SubscriptionMode {
    fn from(mode: Subscription) -> Self {
        match mode {
            Subscription::New => SubscriptionMode::New,
            Subscription::All => SubscriptionMode::All,
        }
    }
}

/// Where everything is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In the data folder
    Embedded,
    /// In a DynamoDB table and an S3 bucket
    Dynamodb,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// The longest time that an option can name.
const SECONDS_MAX: f64 = 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.0..=SECONDS_MAX).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("must be a number of seconds from 0 to {SECONDS_MAX}")),
    }
}

fn some_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).and_then(|time| match time {
        Duration::ZERO => Err("must be above 0".to_owned()),
        time => Ok(time),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_option_is_an_environment_variable_and_explains_itself() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        command.build();
        let serve = command.find_subcommand("serve").unwrap();
        let options: Vec<_> = serve.get_arguments().filter(|a| a.get_id() != "help").collect();
        assert!(options.len() > 10);
        for option in options {
            assert!(option.get_env().is_some(), "{} has no variable", option.get_id());
            assert!(option.get_help().is_some(), "{} has no help", option.get_id());
        }
    }

    #[test]
    fn times_are_seconds_within_reason() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["", "-1", "nan", "inf", "1e9", "10s"] {
            assert!(seconds(bad).is_err() && some_seconds(bad).is_err(), "{bad}");
        }
        assert!(seconds("0").is_ok() && some_seconds("0").is_err());
    }
}
