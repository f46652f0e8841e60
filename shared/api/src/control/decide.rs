//! What a change makes of a stream. A decision is a function of what is stored and of what was asked, so that it can be
//! made again when somebody else was first.

use tidewheel_engine::{ManagedStream, Operation};

use super::{
    definition::{Definition, PROFILE_REVISION},
    fault::Fault,
    text::{Members, compact},
};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To declare a stream, or to declare it otherwise.
    Definition,
    /// To bring it to a state.
    Desired,
    /// To give it another schema.
    Migration,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Definition => "definition",
            Kind::Desired => "desired",
            Kind::Migration => "migration",
        }
    }
}

/// A change, with what it relies on.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    /// JSON without space.
    pub(crate) body: &'a str,
    pub(crate) if_match: Option<&'a str>,
    pub(crate) if_none_match: Option<&'a str>,
}

/// A stream as a change leaves it, and whether there is anything to do.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) after: ManagedStream,
    pub(crate) satisfied: bool,
}

/// The stream's name, if it can be one.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(|&b| plain(b))
        && bytes.len() <= 128
        && bytes.iter().all(|&b| plain(b) || matches!(b, b'_' | b'.' | b'-'))
}

/// Decides a change of a stream as it is. `pending` is the operation that the stream has not done with.
pub(crate) fn decide(
    change: &Change<'_>,
    before: Option<&ManagedStream>,
    pending: Option<&Operation>,
) -> Result<Decision, Fault> {
    if !is_name(change.name) {
        let text =
            "a name has 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`, the first a letter or a digit";
        return Err(Fault::new(422, "invalid_name", text));
    }
    let Some(before) = before else { return created(change) };
    let Some(wanted) = change.if_match else {
        let text = "a change needs `If-Match` with the stream's ETag";
        return Err(Fault::new(428, "precondition_required", text));
    };
    if wanted != format!("\"{}\"", before.revision) || change.if_none_match.is_some() {
        let text = format!("the stream's ETag is \"{}\"", before.revision);
        return Err(Fault::new(412, "precondition_failed", text));
    }
    if let Some(pending) = pending {
        // What failed may have half happened: only the same again is wanted next.
        let again = pending.status == "failed"
            && pending.kind == change.kind.as_str()
            && pending.target == change.body;
        if !again {
            let text = format!("operation {} is not done with", pending.id);
            return Err(Fault::new(409, "transition_pending", text));
        }
    }
    let mut after = before.clone();
    match change.kind {
        Kind::Definition => define(change, before, &mut after)?,
        Kind::Desired => desire(change, before, &mut after)?,
        Kind::Migration => check_migration(change, before)?,
    }
    let satisfied = change.kind != Kind::Migration
        && after.definition == before.definition
        && after.desired == before.desired
        && before.state == after.desired;
    if !satisfied {
        after.revision = before.revision + 1;
    }
    Ok(Decision { after, satisfied })
}

fn created(change: &Change<'_>) -> Result<Decision, Fault> {
    if change.kind != Kind::Definition {
        return Err(unknown_stream());
    }
    match (change.if_none_match, change.if_match) {
        (None, None) => {
            let text = "to declare a new stream needs `If-None-Match: *`";
            Err(Fault::new(428, "precondition_required", text))
        }
        (Some("*"), None) => {
            let definition = Definition::read(change.body)?.to_text();
            let after = ManagedStream::declared(change.name, definition, PROFILE_REVISION);
            Ok(Decision { after, satisfied: false })
        }
        // Of a stream that is not there no ETag is right.
        (None, Some(_)) => {
            Err(Fault::new(428, "precondition_required", "there is no such stream to be matched"))
        }
        _ => Err(Fault::new(412, "precondition_failed", "the preconditions exclude each other")),
    }
}

pub(crate) fn unknown_stream() -> Fault {
    Fault::new(404, "unknown_stream", "there is no stream of this name here")
}

fn define(
    change: &Change<'_>,
    before: &ManagedStream,
    after: &mut ManagedStream,
) -> Result<(), Fault> {
    let definition = Definition::read(change.body)?;
    let text = definition.to_text();
    if text != before.definition {
        if before.state != "stopped" {
            let text = "only a stopped stream can be declared otherwise";
            return Err(Fault::new(409, "must_be_stopped", text));
        }
        if definition.needs_migration(&Definition::stored(&before.definition)?) {
            let text = "another schema or order is a migration";
            return Err(Fault::new(409, "migration_required", text));
        }
    }
    after.definition = text;
    after.profile = PROFILE_REVISION.to_owned();
    Ok(())
}

fn desire(
    change: &Change<'_>,
    before: &ManagedStream,
    after: &mut ManagedStream,
) -> Result<(), Fault> {
    let invalid = || {
        let text = "the body is {\"state\": \"serving\"}, \"stopped\" or \"retired\"";
        Fault::new(422, "invalid_desired", text)
    };
    let members = Members::read(change.body).ok_or_else(invalid)?;
    let state = members.get("state").filter(|_| members.0.len() == 1).ok_or_else(invalid)?;
    let state: String = serde_json::from_str(state.get()).map_err(|_| invalid())?;
    if !matches!(state.as_str(), "serving" | "stopped" | "retired") {
        return Err(invalid());
    }
    if before.desired == "retired" && state != "retired" {
        return Err(Fault::new(409, "retired_stream", "a retired stream stays retired"));
    }
    if state == "retired" && before.stream_id.is_none() {
        let text = "a stream that was never served cannot be retired";
        return Err(Fault::new(409, "unbound_stream", text));
    }
    after.desired = state;
    Ok(())
}

/// Another schema, and the stream that is meant.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) stream_id: String,
    pub(crate) schema: String,
    pub(crate) sort_by: Vec<String>,
}

impl Migration {
    pub(crate) fn read(body: &str) -> Result<Self, Fault> {
        let invalid = || {
            let text = "a migration has `stream_id`, `schema` and `sort_by`, and nothing else";
            Fault::new(422, "invalid_migration", text)
        };
        let members = Members::read(body).ok_or_else(invalid)?;
        if members.0.len() != 3 {
            return Err(invalid());
        }
        let of = |name: &str| members.get(name).map(|raw| raw.get()).ok_or_else(invalid);
        Ok(Self {
            stream_id: serde_json::from_str(of("stream_id")?).map_err(|_| invalid())?,
            schema: compact(of("schema")?),
            sort_by: serde_json::from_str(of("sort_by")?).map_err(|_| invalid())?,
        })
    }
}

fn check_migration(change: &Change<'_>, before: &ManagedStream) -> Result<(), Fault> {
    let migration = Migration::read(change.body)?;
    if before.stream_id.as_ref() != Some(&migration.stream_id) {
        let text = "the stream has another id, or none yet";
        return Err(Fault::new(409, "identity_mismatch", text));
    }
    if before.desired != "stopped" || !matches!(before.state.as_str(), "stopped" | "error") {
        return Err(Fault::new(409, "must_be_stopped", "only a stopped stream can be migrated"));
    }
    let definition = Definition::stored(&before.definition)?;
    definition.migrated(&migration.schema, migration.sort_by)?;
    Ok(())
}
