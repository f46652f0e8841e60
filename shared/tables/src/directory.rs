//! Where a table's files are, and what they are called.
//!
//! `<root>/tables/<stream>/metadata` and `.../data`. A stream's name may be any text; its directory is the name itself
//! where that is safe everywhere, and else an encoding that can be read back. File names carry chance: no two
//! writers ever meet, and a writer that was frozen for an hour cannot overwrite anything.

use object_store::path::Path;
use tidewheel_engine::Uuid;
use tidewheel_store::Env;

use crate::limits;

/// The directory of a stream's table: letters, digits, `_`, `-` and `.` stay, every other byte (and a leading dot)
/// becomes `!` and two hexadecimal digits. A name that would be too long for a file system is cut and ends in
/// `!!` and a hash.
pub fn directory_name(stream: &str) -> String {
    let mut name = String::with_capacity(stream.len());
    for (i, byte) in stream.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || byte == b'.' && i > 0 {
            name.push(byte as char);
        } else {
            name.push_str(&format!("!{byte:02x}"));
        }
    }
    if name.len() > limits::DIRECTORY_BYTES {
        name.truncate(limits::DIRECTORY_BYTES - 34);
        // Not within an escape.
        if let Some(at) = name.rfind('!').filter(|at| at + 3 > name.len()) {
            name.truncate(at);
        }
        name.push_str("!!");
        name.push_str(&Uuid::derived(&[b"directory", stream.as_bytes()]).simple());
    }
    name
}

/// A table's directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// In the object store.
    path: Path,
    /// The same place as readers name it, without a slash at the end.
    uri: String,
}

impl Directory {
    /// The directory `name` under the root of all tables.
    pub(crate) fn new(root: &Path, root_uri: &str, name: &str) -> Self {
        Self {
            path: root.clone().join("tables").join(name),
            uri: format!("{}/tables/{name}", root_uri.trim_end_matches('/')),
        }
    }

    /// The table's location.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The location of a file, by its name within the table.
    pub(crate) fn uri_of(&self, file: &str) -> String {
        format!("{}/{file}", self.uri)
    }

    /// The place of a file in the object store, by its name within the table.
    pub(crate) fn path_of(&self, file: &str) -> Path {
        file.split('/').fold(self.path.clone(), |path, part| path.join(part))
    }

    /// The place of a location that a metadata file names; `None` if it is outside of the table.
    pub(crate) fn path_of_uri(&self, uri: &str) -> Option<Path> {
        let file = uri.strip_prefix(&self.uri)?.strip_prefix('/')?;
        let plain = !file.split('/').any(|part| matches!(part, "" | "." | ".."));
        plain.then(|| self.path_of(file))
    }
}

/// The file that points readers to the newest metadata.
pub(crate) const HINT: &str = "metadata/version-hint.text";

/// A metadata file's name without its suffix: what the hint says. Readers number the versions by the leading digits.
pub(crate) fn metadata_stem(version: u64, env: &Env) -> String {
    format!("{version:05}-{}", Uuid::random(env))
}

/// The metadata file of a stem.
pub(crate) fn metadata_file(stem: &str) -> String {
    format!("metadata/{stem}.metadata.json")
}

/// The version in a stem.
pub(crate) fn stem_version(stem: &str) -> Option<u64> {
    stem.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = name.as_bytes();
        while let [b, tail @ ..] = rest {
            rest = tail;
            if *b == b'!' {
                let hex = std::str::from_utf8(&rest[..2]).unwrap();
                bytes.push(u8::from_str_radix(hex, 16).unwrap());
                rest = &rest[2..];
            } else {
                bytes.push(*b);
            }
        }
        bytes
    }

    #[test]
    fn a_plain_name_stays() {
        for name in ["orders", "flights.hourly", "a-b_c.9", "ORDERS"] {
            assert_eq!(directory_name(name), name);
        }
    }

    #[test]
    fn any_other_name_can_be_read_back_and_cannot_climb() {
        for name in
            [".", "..", ".hidden", "a/b", "../../etc", "Bücher", "a b", "100%", "x!2fy", "\0"]
        {
            let directory = directory_name(name);
            assert!(!directory.starts_with('.') && !directory.contains('/'), "{directory}");
            assert_eq!(decode(&directory), name.as_bytes());
        }
    }

    #[test]
    fn long_names_stay_apart_and_fit_a_file_system() {
        let (a, b) = ("ü".repeat(255) + "a", "ü".repeat(255) + "b");
        assert_ne!(directory_name(&a), directory_name(&b));
        assert!(directory_name(&a).len() <= 255);
    }

    #[test]
    fn a_location_outside_of_the_table_is_not_followed() {
        let directory = Directory::new(&Path::from(""), "file:///data/", "orders");
        assert_eq!(directory.uri(), "file:///data/tables/orders");
        let inside = directory.path_of_uri("file:///data/tables/orders/data/a.parquet");
        assert_eq!(inside.unwrap().as_ref(), "tables/orders/data/a.parquet");
        for outside in [
            "file:///etc/passwd",
            "file:///data/tables/orders/../x",
            "file:///data/tables/orders2/x",
        ] {
            assert_eq!(directory.path_of_uri(outside), None, "{outside}");
        }
    }
}
