//! What a key may do: actions on streams by name.
//!
//! A grant is written `<action>:<pattern>`, as `publish:orders` or `read:sensor.*`. A pattern is a name, or the beginning
//! of names before a `*`; `*` alone is every stream, and the only pattern that reaches what belongs to no stream. A grant
//! to administer contains every other action on its pattern; otherwise no action contains another.
//!
//! Streams whose names begin with [`RESERVED`] are the server's own: a key without a grant to administer them may at most
//! read them, however wide its other grants are.

use std::{fmt, str::FromStr};

use crate::{Error, limits};

/// How the names of the server's own streams begin.
pub const RESERVED: &str = "tidewheel.";

/// What may be done to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Look: by offset, over a socket, at messages, numbers and tables.
    Read,
    /// Put records in.
    Publish,
    /// Take work: leases, acknowledgements, positions, cycles.
    Consume,
    /// Make, change and delete streams, groups and dead letters.
    Control,
    /// Everything, keys and switches too.
    Admin,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 5] =
        [Action::Read, Action::Publish, Action::Consume, Action::Control, Action::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Read => "read",
            Action::Publish => "publish",
            Action::Consume => "consume",
            Action::Control => "control",
            Action::Admin => "admin",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an action is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One stream, or what goes by one name.
    Stream(&'a str),
    /// Every stream, or what belongs to none.
    Everything,
}

/// One action on the streams of one pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The action.
    pub action: Action,
    /// A name, or the beginning of names and a `*`.
    pub pattern: String,
}

impl Grant {
    /// Everything on every stream.
    pub fn everything() -> Self {
        Self { action: Action::Admin, pattern: "*".to_owned() }
    }

    /// True if it contains this action on this target.
    pub fn covers(&self, action: Action, target: Target<'_>) -> bool {
        let contains = self.action == action || self.action == Action::Admin;
        contains
            && match target {
                Target::Everything => self.pattern == "*",
                Target::Stream(name) if self.matches(name) => {
                    action == Action::Read
                        || self.action == Action::Admin
                        || !name.starts_with(RESERVED)
                }
                Target::Stream(_) => false,
            }
    }

    fn matches(&self, name: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => self.pattern == name,
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.action, self.pattern)
    }
}

impl FromStr for Grant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::Invalid(format!("a grant is `<action>:<pattern>`: {why}"));
        let (action, pattern) =
            text.split_once(':').ok_or_else(|| bad("it has no `:`".to_owned()))?;
        let action = Action::ALL.into_iter().find(|a| a.as_str() == action).ok_or_else(|| {
            bad("the actions are read, publish, consume, control and admin".to_owned())
        })?;
        let limit = limits::NAME_BYTES;
        if pattern.is_empty() || pattern.len() > limit {
            return Err(bad(format!("the pattern has {} bytes of 1 to {limit}", pattern.len())));
        }
        if pattern.trim_end_matches('*').len() + 1 < pattern.len()
            || pattern.strip_suffix('*').unwrap_or(pattern).contains('*')
        {
            return Err(bad("a `*` stands once, at the pattern's end".to_owned()));
        }
        Ok(Self { action, pattern: pattern.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(grant: &str, action: Action, target: Target<'_>) -> bool {
        grant.parse::<Grant>().unwrap().covers(action, target)
    }

    #[test]
    fn a_grant_covers_its_action_on_its_pattern_and_nothing_else() {
        use {Action::*, Target::*};
        assert!(covers("publish:orders", Publish, Stream("orders")));
        assert!(!covers("publish:orders", Publish, Stream("orders2")));
        assert!(!covers("publish:orders", Read, Stream("orders")));
        assert!(covers("read:orders*", Read, Stream("orders")));
        assert!(covers("read:orders*", Read, Stream("orders.eu")));
        assert!(!covers("read:orders*", Read, Stream("order")));
        assert!(!covers("read:orders*", Read, Everything));
        assert!(covers("read:*", Read, Everything));
        for action in Action::ALL {
            assert!(covers("admin:*", action, Everything));
            assert!(covers("admin:a*", action, Stream("ab")));
            assert!(!covers("admin:a*", action, Everything));
        }
        assert!(!covers("control:*", Admin, Everything));
    }

    #[test]
    fn the_servers_own_streams_are_read_at_most() {
        use {Action::*, Target::Stream};
        assert!(covers("read:*", Read, Stream("tidewheel.audit")));
        for action in [Publish, Consume, Control] {
            assert!(!covers(&format!("{action}:*"), action, Stream("tidewheel.audit")));
            assert!(covers("admin:*", action, Stream("tidewheel.audit")));
        }
    }

    #[test]
    fn what_is_no_grant_is_refused_with_a_reason() {
        for good in ["read:*", "admin:a.b-c", "consume:a:b", "publish:é*"] {
            assert_eq!(good.parse::<Grant>().unwrap().to_string(), good);
        }
        for bad in ["", "read", "read:", "write:*", "READ:*", "read:a*b", "read:**", "read:*a"] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
        assert!(format!("read:{}", "x".repeat(600)).parse::<Grant>().is_err());
    }
}
