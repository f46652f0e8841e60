//! Where a table's files are, and what they are called.
//!
//! `<root>/tables/<stream>/metadata` and `.../data`. A stream's name may be any text; its directory is the name itself
//! where that is safe everywhere, and else an encoding that can be read back. File names carry chance and the time that they
//! were made: no two writers ever meet, a writer that was frozen for an hour cannot overwrite anything, and the
//! collector knows what is too young to be judged.

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
    /// The directory `name`, one or several below another, under the root of all tables.
    pub(crate) fn new(root: &Path, root_uri: &str, name: &str) -> Self {
        let tables = root.clone().join("tables");
        Self {
            path: name.split('/').fold(tables, |path, part| path.join(part)),
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
        let parts = file.split('/').filter(|part| !part.is_empty());
        parts.fold(self.path.clone(), |path, part| path.join(part))
    }

    /// The name within the table of a location that a metadata file names; `None` if it is outside of the table.
    pub(crate) fn file_of_uri<'a>(&self, uri: &'a str) -> Option<&'a str> {
        let file = uri.strip_prefix(&self.uri)?.strip_prefix('/')?;
        let plain = !file.split('/').any(|part| matches!(part, "" | "." | ".."));
        plain.then_some(file)
    }

    /// The place of a location that a metadata file names; `None` if it is outside of the table.
    pub(crate) fn path_of_uri(&self, uri: &str) -> Option<Path> {
        self.file_of_uri(uri).map(|file| self.path_of(file))
    }

    /// The name within the table of a place in the object store; `None` if it is outside of the table.
    pub(crate) fn file_of(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.path)?.map(|p| p.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }
}

/// The file that points readers to the newest metadata.
pub(crate) const HINT: &str = "metadata/version-hint.text";

/// A metadata file's name without its suffix: what the hint says. Readers number the versions by the leading digits.
pub(crate) fn metadata_stem(version: u64, env: &Env) -> String {
    format!("{version:05}-{}", fresh_id(env))
}

/// A name that nobody else has and that says when it was made: a UUIDv7.
pub(crate) fn fresh_id(env: &Env) -> Uuid {
    let ms = (env.now_us().max(0) as u64) / 1000;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(ms << 16 | env.random() & 0x0fff | 0x7000).to_be_bytes());
    bytes[8..].copy_from_slice(&(env.random() >> 2 | 1 << 63).to_be_bytes());
    Uuid::from_bytes(bytes)
}

/// When the name of a file was made, µs since 1970, to the millisecond; `None` if it does not say.
pub(crate) fn made_us(file: &str) -> Option<i64> {
    let name = file.rsplit('/').next()?;
    (0..name.len()).find_map(|at| {
        let id = *name.get(at..at + ID_CHARS).and_then(Uuid::parse)?.as_bytes();
        let mut ms = [0; 8];
        ms[2..].copy_from_slice(&id[..6]);
        (id[6] >> 4 == 7).then(|| (u64::from_be_bytes(ms) as i64).saturating_mul(1000))
    })
}

/// Characters of an id in a name.
const ID_CHARS: usize = 36;

/// The version in the name of a metadata file, by its name within the table.
pub(crate) fn metadata_version(file: &str) -> Option<u64> {
    let stem = file.strip_prefix("metadata/")?.strip_suffix(".metadata.json")?;
    stem_version(stem)
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
    fn a_name_says_when_it_was_made() {
        let env = Env::system();
        let before = env.now_us() / 1000 * 1000;
        for file in [
            format!("data/{}.parquet", fresh_id(&env)),
            format!("metadata/snap-8712-{}.avro", fresh_id(&env)),
            metadata_file(&metadata_stem(12, &env)),
        ] {
            let made = made_us(&file).unwrap();
            assert!(before <= made && made <= env.now_us(), "{file}");
        }
        assert_eq!(metadata_version(&metadata_file(&metadata_stem(12, &env))), Some(12));
        for none in [HINT, "data/a.parquet", &format!("data/{}.parquet", Uuid::random(&env))] {
            assert_eq!(made_us(none), None, "{none}");
        }
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
