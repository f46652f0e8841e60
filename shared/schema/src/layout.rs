//! Where readers find what a declared stream publishes. It follows from the stream's name alone, so that whoever greets a
//! reader can say it without looking.
//!
//! ```text
//! <root>/tables/<stream>/<stream>.metadata/version-hint.text     the newest version of the stream's metadata
//! <root>/tables/<stream>/<stream>.metadata.json                  a plain copy of it
//! <root>/tables/<stream>/<log>/metadata, /data                   the table of each generation
//! ```

/// Where the metadata of a declared stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUris {
    /// The file that names the newest version: what a greeting calls `metadata_hint`.
    pub hint: String,
    /// The plain copy, for readers that know no hint: what a greeting calls `metadata`.
    pub plain: String,
}

/// Where the metadata of the declared stream `stream` is, under the root of all tables: `file:///data`, or
/// `s3://bucket/prefix`. The name is that of a declared stream, so it needs no encoding.
pub fn metadata_uris(root_uri: &str, stream: &str) -> MetadataUris {
    let base = format!("{}/tables/{stream}/{stream}", root_uri.trim_end_matches('/'));
    MetadataUris {
        hint: format!("{base}.metadata/version-hint.text"),
        plain: format!("{base}.metadata.json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_lies_in_a_folder_that_ends_in_metadata() {
        let uris = metadata_uris("s3://lake/prod/", "trades");
        assert_eq!(uris.hint, "s3://lake/prod/tables/trades/trades.metadata/version-hint.text");
        assert_eq!(uris.plain, "s3://lake/prod/tables/trades/trades.metadata.json");
    }
}
