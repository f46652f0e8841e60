//! The schema compiler, by example: what it takes, what it publishes, what it refuses and why.

use tidewheel_schema::{Schema, SchemaError};

const FULL: &str = r#"{
    "type": "object",
    "properties": {
        "z": {"type": "integer"},
        "b": {"type": ["integer", "null"], "format": "int32"},
        "c": {"type": "number", "format": "float"},
        "d": {"type": ["number", "null"]},
        "e": {"type": "string", "contentEncoding": "base16"},
        "f": {"type": ["string", "null"], "contentEncoding": "base64", "format": "bytes4"},
        "g": {"type": "object", "properties": {"x": {"type": "boolean"}, "a": {"type": ["string", "null"]}},
              "required": ["x"]},
        "h": {"type": ["object", "null"], "additionalProperties": {"type": ["integer", "null"]}},
        "i": {"type": "array",
              "items": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}}
    },
    "required": ["z", "c", "e", "g", "i"]
}"#;

const PUBLISHED: &str = concat!(
    r#"{"type":"object","properties":{"z":{"type":"integer","format":"int64"},"#,
    r#""b":{"type":["integer","null"],"format":"int32"},"#,
    r#""c":{"type":"number","format":"float"},"#,
    r#""d":{"type":["number","null"],"format":"double"},"#,
    r#""e":{"type":"string","contentEncoding":"base16"},"#,
    r#""f":{"type":["string","null"],"contentEncoding":"base64","format":"bytes4"},"#,
    r#""g":{"type":"object","properties":{"x":{"type":"boolean"},"a":{"type":["string","null"]}},"#,
    r#""required":["x"],"additionalProperties":false},"#,
    r#""h":{"type":["object","null"],"additionalProperties":{"type":["integer","null"],"format":"int64"}},"#,
    r#""i":{"type":"array","items":{"type":"object","#,
    r#""additionalProperties":{"type":"array","items":{"type":"string"}}}}},"#,
    r#""required":["z","c","e","g","i"]}"#,
);

#[test]
fn a_schema_is_published_with_widths_and_compiles_again_to_itself() {
    let schema = Schema::compile(FULL).unwrap();
    assert_eq!(schema.to_text(), PUBLISHED);
    let again = Schema::compile(PUBLISHED).unwrap();
    assert_eq!(again.columns(), schema.columns());
    assert_eq!(again.to_text(), PUBLISHED);
}

/// Compiles one column `a`, listed in `required`.
fn column(spec: &str) -> Result<Schema, SchemaError> {
    Schema::compile(&format!(r#"{{"properties":{{"a":{spec}}},"required":["a"]}}"#))
}

#[test]
fn what_cannot_be_stored_is_refused_by_its_columns_name() {
    for (spec, path, word) in [
        (r#"{"type":"null"}"#, "a", "null"),
        (r#"{"type":["string","integer"]}"#, "a", "union"),
        (r#"{"type":"string","format":"date-time"}"#, "a", "date-time"),
        (r#"{"type":"string","format":"date"}"#, "a", "date"),
        (r#"{"type":"string","format":"time"}"#, "a", "time"),
        (r#"{"type":"string","format":"byte"}"#, "a", "contentEncoding"),
        (r#"{"type":"string","format":"binary"}"#, "a", "contentEncoding"),
        (r#"{"type":"string","format":"email"}"#, "a", "email"),
        (r#"{"type":"integer","format":"int16"}"#, "a", "int16"),
        (r#"{"type":"integer","format":"double"}"#, "a", "double"),
        (r#"{"type":"boolean","format":"x"}"#, "a", "boolean"),
        (r#"{"type":"object"}"#, "a", "properties"),
        (r#"{"type":"object","properties":{}}"#, "a", "properties"),
        (
            r#"{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"additionalProperties":{"type":"string"}}"#,
            "a",
            "not both",
        ),
        (r#"{"type":"array"}"#, "a", "items"),
        (r#"{"type":"array","items":{"type":"null"}}"#, "a[]", "null"),
        (r#"{"type":"object","additionalProperties":{"type":"dog"}}"#, "a[…]", "dog"),
        (r#"{"type":"string","contentEncoding":"base32"}"#, "a", "base32"),
        (r#"{"type":"string","contentEncoding":"base64","format":"bytes0"}"#, "a", "bytesN"),
        (r#"{"type":"string","contentEncoding":"base64","format":"bytes+4"}"#, "a", "bytesN"),
        (r#"{"type":"string","format":"bytes4"}"#, "a", "bytes4"),
        (r#"{"type":"object","properties":{"x":{"type":"string"}}}"#, "a.x", "required"),
        (r#"{"type":"object","properties":{"x":{"type":"string"}},"required":["y"]}"#, "a", "`y`"),
        (r#"{}"#, "a", "type"),
        (r#"{"type":7}"#, "a", "type"),
        (r#"true"#, "a", "object"),
    ] {
        match column(spec) {
            Err(SchemaError::Column { column, reason }) => {
                assert_eq!(column, path, "{spec}");
                assert!(reason.contains(word), "{spec}: {reason}");
            }
            other => panic!("{spec}: {other:?}"),
        }
    }
}

#[test]
fn a_schema_as_a_whole_may_be_refused() {
    for (text, word) in [
        ("[", "JSON"),
        ("[]", "object"),
        (r#"{"type":"array","items":{"type":"string"}}"#, "object"),
        (
            r#"{"type":["object","null"],"properties":{"a":{"type":"string"}},"required":["a"]}"#,
            "object",
        ),
        (r#"{"type":"object"}"#, "properties"),
        (r#"{"properties":{}}"#, "properties"),
        (r#"{"properties":{"a":{"type":"string"}},"required":["b"]}"#, "`b`"),
        (r#"{"properties":{"a":{"type":"string"}},"required":"a"}"#, "required"),
    ] {
        let error = Schema::compile(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
    for reserved in ["streamcast_ts", "litelink_offset"] {
        let text = format!(
            r#"{{"properties":{{"{reserved}":{{"type":"string"}}}},"required":["{reserved}"]}}"#
        );
        assert!(Schema::compile(&text).unwrap_err().to_string().contains("reserved"));
    }
    // May be left out, may not be null: a table cannot tell that.
    let optional = Schema::compile(r#"{"properties":{"a":{"type":"string"}}}"#).unwrap_err();
    assert!(optional.to_string().starts_with("column `a`"), "{optional}");
    let twice = r#"{"properties":{"a":{"type":"string"},"a":{"type":"string"}},"required":["a"]}"#;
    assert!(Schema::compile(twice).unwrap_err().to_string().contains("twice"));
    let ambiguous = r#"{"properties":{"a.b":{"type":"string"},
        "a":{"type":"object","properties":{"b":{"type":"string"}},"required":["b"]}},"required":["a.b","a"]}"#;
    assert!(Schema::compile(ambiguous).is_err());
}

#[test]
fn depth_and_size_are_bounded() {
    let deep = |n: usize| {
        format!(
            "{}{}{}",
            r#"{"type":"array","items":"#.repeat(n),
            r#"{"type":"string"}"#,
            "}".repeat(n)
        )
    };
    assert!(column(&deep(10)).is_ok());
    assert!(column(&deep(1000)).unwrap_err().to_string().contains("nested"));
    let wide: Vec<_> =
        (0..2001).map(|i| format!(r#""c{i}":{{"type":["string","null"]}}"#)).collect();
    let error =
        Schema::compile(&format!(r#"{{"properties":{{{}}}}}"#, wide.join(","))).unwrap_err();
    assert!(error.to_string().contains("2000"), "{error}");
    let long = format!(
        r#"{{"title":"{}","properties":{{"a":{{"type":["string","null"]}}}}}}"#,
        "x".repeat(270_000)
    );
    assert!(Schema::compile(&long).unwrap_err().to_string().contains("262144"));
}

#[test]
fn what_is_not_enforced_is_named() {
    let schema = Schema::compile(
        r#"{"$schema":"x","title":"t","additionalProperties":false,"properties":
            {"a":{"type":["string","null","null"],"enum":["x"],"description":"d","minLength":3}}}"#,
    )
    .unwrap();
    assert_eq!(schema.ignored(), ["a: enum", "a: minLength"]);
    assert_eq!(
        schema.to_text(),
        r#"{"type":"object","properties":{"a":{"type":["string","null"]}},"required":[]}"#
    );
}
