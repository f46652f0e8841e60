//! What a declaration says: read strictly, with every default made explicit, so that what is stored and shown is what
//! holds. What would not be kept is refused: an unknown member, a keyword of the schema that has no effect here.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tidewheel_engine::Declaration;
use tidewheel_schema::Schema;

use super::{
    fault::Fault,
    text::{Members, compact},
};

/// The one storage profile: where this server keeps everything.
pub(crate) const PROFILE: &str = "local";

/// Its revision.
pub(crate) const PROFILE_REVISION: &str = "1";

/// Bytes of a frame on a socket; a stream may allow less.
pub(crate) const TRANSPORT_BYTES: u64 = 1024 * 1024;

const MEMBERS: [&str; 10] = [
    "schema",
    "sort_by",
    "storage_profile",
    "initialization",
    "exactly_once",
    "replay_published",
    "max_replay",
    "group_commit",
    "limits",
    "log",
];

/// Rows that may be replayed at a time, unless a declaration says otherwise.
const REPLAY: u64 = 100_000;

/// A declaration, understood.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    /// The schema as it was written, without space.
    pub(crate) schema: String,
    pub(crate) sort_by: Vec<String>,
    pub(crate) creates: bool,
    pub(crate) exactly_once: bool,
    pub(crate) replay_published: bool,
    pub(crate) group_commit: bool,
    pub(crate) max_replay: Option<u64>,
    pub(crate) limits: Limits,
    pub(crate) log: bool,
}

/// The limits of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    max_backlog: u64,
    max_inbound: u64,
    max_in_flight: u64,
    max_message_bytes: u64,
}

/// Reads a value of a type, or says that the member has another.
fn member<'a, T: Deserialize<'a>>(
    members: &Members<'a>,
    name: &str,
    what: &str,
    default: T,
) -> Result<T, Fault> {
    match members.get(name) {
        None => Ok(default),
        Some(raw) => serde_json::from_str(raw.get())
            .map_err(|_| Fault::invalid(format!("`{name}` must be {what}"))),
    }
}

impl Definition {
    /// Reads a declaration.
    ///
    /// # Errors
    /// 422, naming what is wrong.
    pub(crate) fn read(text: &str) -> Result<Self, Fault> {
        let members =
            Members::read(text).ok_or_else(|| Fault::invalid("a declaration is an object"))?;
        if let Some(other) = members.other_than(&MEMBERS) {
            return Err(Fault::invalid(format!("unknown member `{other}`")));
        }
        let schema =
            members.get("schema").ok_or_else(|| Fault::invalid("`schema` is missing"))?.get();
        let profile: String = members
            .get("storage_profile")
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
            .ok_or_else(|| Fault::invalid("`storage_profile` is missing or no text"))?;
        if profile != PROFILE {
            return Err(Fault::invalid(format!("there is no storage profile `{profile}`")));
        }
        let creates = match member(
            &members,
            "initialization",
            "a text",
            "open_existing".to_owned(),
        )?
        .as_str()
        {
            "open_existing" => false,
            "create_if_absent" => true,
            _ => {
                let text = "`initialization` is `open_existing` or `create_if_absent`";
                return Err(Fault::invalid(text));
            }
        };
        let max_replay = match members.get("max_replay").map(RawValue::get) {
            None => Some(REPLAY),
            Some("null") => None,
            Some(text) => Some(text.parse().map_err(|_| {
                Fault::invalid("`max_replay` must be null or a whole number from 0")
            })?),
        };
        let definition = Self {
            schema: compact(schema),
            sort_by: member(&members, "sort_by", "a list of columns", Vec::new())?,
            creates,
            exactly_once: member(&members, "exactly_once", "true or false", false)?,
            replay_published: member(&members, "replay_published", "true or false", false)?,
            group_commit: member(&members, "group_commit", "true or false", true)?,
            max_replay,
            limits: Limits::read(members.get("limits"))?,
            log: member(&members, "log", "true or false", true)?,
        };
        if definition.exactly_once && !definition.log {
            let text = "`exactly_once` needs a log: what is not kept cannot be told apart";
            return Err(Fault::invalid(text));
        }
        definition.compile()?;
        Ok(definition)
    }

    /// Reads one that was read before.
    ///
    /// # Errors
    /// 422 if it is none any more.
    pub(crate) fn stored(text: &str) -> Result<Self, Fault> {
        Self::read(text)
    }

    /// The same with another schema.
    ///
    /// # Errors
    /// 422, naming what is wrong.
    pub(crate) fn migrated(&self, schema: &str, sort_by: Vec<String>) -> Result<Self, Fault> {
        let migrated = Self { schema: compact(schema), sort_by, ..self.clone() };
        migrated.compile()?;
        Ok(migrated)
    }

    /// The schema's columns, with nothing that would be ignored.
    ///
    /// # Errors
    /// 422, naming the column.
    pub(crate) fn compile(&self) -> Result<Schema, Fault> {
        let schema = Schema::compile(&self.schema).map_err(|e| Fault::invalid(e.to_string()))?;
        if let Some(keyword) = schema.ignored().first() {
            return Err(Fault::invalid(format!(
                "the schema says `{keyword}`, which is not enforced here: leave it out"
            )));
        }
        let root = Members::read(&self.schema);
        let additional = root.as_ref().and_then(|m| m.get("additionalProperties"));
        if additional.is_some_and(|raw| raw.get() != "false") {
            return Err(Fault::invalid("`additionalProperties` must be false or left out"));
        }
        let mut seen = Vec::new();
        for name in &self.sort_by {
            if !schema.columns().iter().any(|column| column.name == *name) {
                return Err(Fault::invalid(format!("`sort_by` names no column: `{name}`")));
            }
            if seen.contains(&name) {
                return Err(Fault::invalid(format!("`sort_by` names `{name}` twice")));
            }
            seen.push(name);
        }
        Ok(schema)
    }

    /// What it asks of the engine.
    ///
    /// # Errors
    /// 422 if the schema is none.
    pub(crate) fn declaration(&self) -> Result<Declaration, Fault> {
        Ok(Declaration {
            schema: Some(Arc::new(self.compile()?)),
            sort_by: self.sort_by.clone(),
            log: self.log,
            group_commit: self.group_commit,
            exactly_once: self.exactly_once,
            max_replay: self.max_replay,
            max_backlog: self.limits.max_backlog,
            max_message_bytes: usize::try_from(self.limits.max_message_bytes).unwrap_or(usize::MAX),
            ..Declaration::default()
        })
    }

    /// The declaration with every default, as it is stored and shown.
    pub(crate) fn to_text(&self) -> String {
        let initialization = if self.creates { "create_if_absent" } else { "open_existing" };
        let Limits { max_backlog, max_inbound, max_in_flight, max_message_bytes } = self.limits;
        let replay = self.max_replay.map_or("null".to_owned(), |rows| rows.to_string());
        // Without a log is this server's own word: who does not use it does not see it.
        let log = if self.log { "" } else { ",\"log\":false" };
        format!(
            "{{\"schema\":{},\"sort_by\":{},\"storage_profile\":\"{PROFILE}\",\"initialization\":\"{initialization}\",\
             \"exactly_once\":{},\"replay_published\":{},\"group_commit\":{},\"max_replay\":{replay},\
             \"limits\":{{\"max_backlog\":{max_backlog},\"max_inbound\":{max_inbound},\
             \"max_in_flight\":{max_in_flight},\"max_message_bytes\":{max_message_bytes}}}{log}}}",
            self.schema,
            json!(self.sort_by),
            self.exactly_once,
            self.replay_published,
            self.group_commit,
        )
    }

    /// True if two declarations differ in more than what a migration changes.
    pub(crate) fn needs_migration(&self, other: &Self) -> bool {
        self.schema != other.schema || self.sort_by != other.sort_by || self.log != other.log
    }
}

impl Limits {
    fn read(raw: Option<&RawValue>) -> Result<Self, Fault> {
        let mut limits = Self {
            max_backlog: 8192,
            max_inbound: 65_536,
            max_in_flight: 64,
            max_message_bytes: TRANSPORT_BYTES,
        };
        let Some(raw) = raw else { return Ok(limits) };
        let members =
            Members::read(raw.get()).ok_or_else(|| Fault::invalid("`limits` is an object"))?;
        for (name, value) in &members.0 {
            let limit = match name.as_ref() {
                "max_backlog" => &mut limits.max_backlog,
                "max_inbound" => &mut limits.max_inbound,
                "max_in_flight" => &mut limits.max_in_flight,
                "max_message_bytes" => &mut limits.max_message_bytes,
                other => return Err(Fault::invalid(format!("unknown limit `{other}`"))),
            };
            *limit =
                value.get().parse().ok().filter(|n| *n > 0 && *n <= 1 << 53).ok_or_else(|| {
                    Fault::invalid(format!("`limits.{name}` must be a whole number above 0"))
                })?;
        }
        if limits.max_message_bytes > TRANSPORT_BYTES {
            return Err(Fault::invalid(format!(
                "`limits.max_message_bytes` is {}; the limit is {TRANSPORT_BYTES}",
                limits.max_message_bytes
            )));
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":["string","null"]}},"required":["b"]}"#;

    fn with(more: &str) -> String {
        format!(r#"{{"schema": {SCHEMA}, "storage_profile": "local"{more}}}"#)
    }

    #[test]
    fn defaults_become_explicit_and_read_back_as_they_are() {
        let definition = Definition::read(&with("")).unwrap();
        let text = definition.to_text();
        assert_eq!(Definition::stored(&text).unwrap(), definition);
        assert!(text.starts_with(&format!(r#"{{"schema":{SCHEMA},"sort_by":[],"#)), "{text}");
        assert!(text.contains(r#""max_replay":100000"#) && !text.contains("\"log\""), "{text}");
        let without_log = Definition::read(&with(r#", "log": false, "max_replay": null"#)).unwrap();
        assert!(!without_log.log && without_log.max_replay.is_none());
        assert_eq!(Definition::stored(&without_log.to_text()).unwrap(), without_log);
    }

    #[test]
    fn what_would_not_be_kept_is_refused() {
        for bad in [
            "[]".to_owned(),
            r#"{"storage_profile":"local"}"#.to_owned(),
            format!(r#"{{"schema":{SCHEMA}}}"#),
            with(r#","extra":1"#),
            with(r#","sort_by":["c"]"#),
            with(r#","sort_by":["a","a"]"#),
            with(r#","exactly_once":1"#),
            with(r#","group_commit":null"#),
            with(r#","max_replay":-1"#),
            with(r#","max_replay":1.5"#),
            with(r#","initialization":"create""#),
            with(r#","limits":{"max_backlog":0}"#),
            with(r#","limits":{"max_message_bytes":1048577}"#),
            with(r#","limits":{"other":1}"#),
            with(r#","log":false,"exactly_once":true"#),
            with("").replace("local", "elsewhere"),
            with("").replace(r#""type":"integer""#, r#""type":"integer","minimum":1"#),
            with("")
                .replace(r#""required":["b"]"#, r#""required":["b"],"additionalProperties":true"#),
            with("").replace(r#""b""#, r#""streamcast_ts""#),
            with("").replace(r#""b""#, r#""litelink_offset""#),
        ] {
            assert!(Definition::read(&bad).is_err(), "{bad}");
        }
    }
}
