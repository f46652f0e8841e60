//! Declared schemas: JSON Schema in, columns out, and back.
//!
//! The order of `properties` is the order of the columns, everywhere. A column is nullable exactly if its type lists
//! `"null"`; a column that may be left out but not be null cannot be stored and is refused, at every depth. What a
//! schema says beyond types (`enum`, `minimum`, ...) is not enforced; [`Schema::ignored`] names it, so that an API
//! can refuse what it would not keep.

use std::{collections::HashSet, fmt::Write as _};

use serde_json::value::RawValue;

use crate::{
    json::{Members, Value},
    limits,
};

/// Column names that the stream itself fills in.
pub const RESERVED: [&str; 2] = ["litelink_offset", "streamcast_ts"];

/// Why a text is no schema. The message names the column.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// Something about the schema as a whole.
    #[error("{0}")]
    Root(String),
    /// Something about one column; nested ones are named by their path.
    #[error("column `{column}`: {reason}")]
    Column {
        /// The column's path.
        column: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// How bytes are written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal: lower case when written, either when read.
    Base16,
    /// The standard alphabet, padded.
    Base64,
}

impl Encoding {
    /// Its name in `contentEncoding`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Base16 => "base16",
            Encoding::Base64 => "base64",
        }
    }
}

/// The type of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// True or false.
    Bool,
    /// 32 bits.
    Int32,
    /// 64 bits.
    Int64,
    /// Single precision.
    Float32,
    /// Double precision.
    Float64,
    /// Text.
    Text,
    /// Bytes, of a fixed size if one is given.
    Binary {
        /// How they are written in JSON.
        encoding: Encoding,
        /// Bytes of every value.
        size: Option<usize>,
    },
    /// Named fields.
    Struct(Vec<Column>),
    /// Texts to values.
    Map(Box<Column>),
    /// A list of values.
    List(Box<Column>),
}

impl Kind {
    /// Its name, for messages.
    pub fn name(&self) -> String {
        match self {
            Kind::Bool => "boolean".to_owned(),
            Kind::Int32 => "int32".to_owned(),
            Kind::Int64 => "int64".to_owned(),
            Kind::Float32 => "float".to_owned(),
            Kind::Float64 => "double".to_owned(),
            Kind::Text => "string".to_owned(),
            Kind::Binary { encoding, size: None } => format!("{} bytes", encoding.name()),
            Kind::Binary { encoding, size: Some(n) } => format!("{n} {} bytes", encoding.name()),
            Kind::Map(value) => format!("map of {}", value.kind.name()),
            Kind::List(item) => format!("list of {}", item.kind.name()),
            Kind::Struct(fields) => {
                let field = |f: &Column| {
                    format!("{} {}{}", f.name, f.kind.name(), if f.nullable { "?" } else { "" })
                };
                let fields: Vec<_> = fields.iter().map(field).collect();
                format!("struct of {}", fields.join(", "))
            }
        }
    }
}

/// A column, a field of a struct, a map's value or a list's item.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name (`value` and `item` within maps and lists).
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// True if it may be null, and then also left out.
    pub nullable: bool,
}

/// The columns of a declared stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    columns: Vec<Column>,
    ignored: Vec<String>,
}

impl Schema {
    /// Reads a JSON Schema.
    ///
    /// # Errors
    /// [`SchemaError`], naming the column that cannot be stored, or the limit that is passed.
    pub fn compile(text: &str) -> Result<Self, SchemaError> {
        if text.len() > limits::SCHEMA_BYTES {
            return Err(SchemaError::Root(format!(
                "the schema has {} bytes; the limit is {}",
                text.len(),
                limits::SCHEMA_BYTES
            )));
        }
        let mut compiler = Compiler::default();
        let raw: &RawValue = serde_json::from_str(text)
            .map_err(|e| SchemaError::Root(format!("the schema is not JSON: {e}")))?;
        let node = compiler.node("", raw)?;
        if node
            .ty
            .as_ref()
            .is_some_and(|t| *t != Types { real: vec!["object".into()], null: false })
        {
            return Err(SchemaError::Root("a stream's schema is of type `object`".to_owned()));
        }
        let properties = node.properties.filter(|p| !p.is_empty()).ok_or_else(|| {
            SchemaError::Root("a stream's schema needs `properties`, not empty".to_owned())
        })?;
        let columns = compiler.fields("", &properties, &node.required, 0)?;
        if let Some(column) = columns.iter().find(|c| RESERVED.contains(&c.name.as_str())) {
            return Err(at(&column.name, "the name is reserved: the stream fills it in"));
        }
        let schema = Self { columns, ignored: compiler.ignored };
        // A table finds a column by its dotted path: `{"a.b": ..., "a": {"b": ...}}` would be ambiguous.
        let mut paths = HashSet::new();
        for column in &schema.columns {
            paths_of(column, column.name.clone(), &mut paths)?;
        }
        Ok(schema)
    }

    /// The columns, in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Keywords that the schema uses and that have no effect here, as `path: keyword`.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The schema as it is published, as JSON text (the order of the columns is kept): widths explicit, nullable
    /// types as a list with `"null"`, structs closed. Compiling it gives the same columns.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        write_object(&mut out, &self.columns, false);
        out
    }
}

/// Collects the paths by which a table finds a column and what is in it.
fn paths_of(column: &Column, path: String, paths: &mut HashSet<String>) -> Result<(), SchemaError> {
    match &column.kind {
        Kind::Struct(fields) => {
            for field in fields {
                paths_of(field, join(&path, &field.name), paths)?;
            }
        }
        Kind::Map(value) => {
            paths_of(value, join(&path, "value"), paths)?;
            paths.insert(join(&path, "key"));
        }
        Kind::List(item) => paths_of(item, join(&path, "element"), paths)?,
        _ => {}
    }
    if paths.contains(&path) {
        return Err(at(&path, "the columns make no table: two of them have this path"));
    }
    paths.insert(path);
    Ok(())
}

fn at(column: &str, reason: impl Into<String>) -> SchemaError {
    SchemaError::Column { column: column.to_owned(), reason: reason.into() }
}

#[derive(Default)]
struct Compiler {
    ignored: Vec<String>,
    fields: usize,
}

#[derive(Debug, PartialEq)]
struct Types {
    real: Vec<String>,
    null: bool,
}

type Properties<'a> = Vec<(String, &'a RawValue)>;

#[derive(Default)]
struct Node<'a> {
    ty: Option<Types>,
    properties: Option<Properties<'a>>,
    required: Vec<String>,
    values: Option<&'a RawValue>,
    items: Option<&'a RawValue>,
    format: Option<String>,
    encoding: Option<String>,
}

/// Keywords that only describe.
const ANNOTATIONS: [&str; 9] = [
    "title",
    "description",
    "$schema",
    "$id",
    "$comment",
    "examples",
    "default",
    "deprecated",
    "readOnly",
];

impl Compiler {
    fn node<'a>(&mut self, path: &str, raw: &'a RawValue) -> Result<Node<'a>, SchemaError> {
        let wrong = |keyword: &str, must: &str| {
            let reason = format!("`{keyword}` must be {must}");
            if path.is_empty() { SchemaError::Root(reason) } else { at(path, reason) }
        };
        let Value::Object(text) = Value::of(raw) else {
            return Err(wrong("schema", "an object"));
        };
        let members: Members<'_> =
            serde_json::from_str(text).map_err(|_| wrong("schema", "an object"))?;
        let mut node = Node::default();
        for (keyword, value) in members.0 {
            let string = |must: &str| {
                serde_json::from_str::<String>(value.get()).map_err(|_| wrong(&keyword, must))
            };
            match &*keyword {
                "type" => {
                    let mut names: Vec<String> = match Value::of(value) {
                        Value::Text(_) => vec![string("a type")?],
                        _ => serde_json::from_str(value.get())
                            .map_err(|_| wrong("type", "a type or a list of types"))?,
                    };
                    let count = names.len();
                    let listed = matches!(Value::of(value), Value::Array(_));
                    names.retain(|n| n != "null");
                    node.ty = Some(Types { null: names.len() < count && listed, real: names });
                }
                "properties" => {
                    let Members(list) = serde_json::from_str(value.get())
                        .map_err(|_| wrong("properties", "an object"))?;
                    let mut names = HashSet::new();
                    let mut properties = Vec::with_capacity(list.len());
                    for (name, child) in list {
                        if !names.insert(name.clone()) {
                            return Err(at(&join(path, &name), "the name stands twice"));
                        }
                        properties.push((name.into_owned(), child));
                    }
                    node.properties = Some(properties);
                }
                "required" => {
                    node.required = serde_json::from_str(value.get())
                        .map_err(|_| wrong("required", "a list of names"))?;
                }
                "additionalProperties" => {
                    // true and false say nothing about a column: unknown fields are refused either way.
                    node.values = match Value::of(value) {
                        Value::Object(_) => Some(value),
                        Value::Bool(open) => {
                            if open {
                                self.ignored.push(label(path, &keyword));
                            }
                            None
                        }
                        _ => return Err(wrong(&keyword, "a schema, true or false")),
                    }
                }
                "items" => node.items = Some(value),
                "format" => node.format = Some(string("a text")?),
                "contentEncoding" => node.encoding = Some(string("a text")?),
                other => {
                    if !ANNOTATIONS.contains(&other) {
                        self.ignored.push(label(path, other));
                    }
                }
            }
        }
        Ok(node)
    }

    fn fields(
        &mut self,
        path: &str,
        properties: &Properties<'_>,
        required: &[String],
        depth: usize,
    ) -> Result<Vec<Column>, SchemaError> {
        if let Some(name) = required.iter().find(|r| !properties.iter().any(|(n, _)| n == *r)) {
            let reason = format!("`required` names `{name}`, which `properties` does not have");
            return Err(if path.is_empty() { SchemaError::Root(reason) } else { at(path, reason) });
        }
        let required: HashSet<&str> = required.iter().map(String::as_str).collect();
        properties
            .iter()
            .map(|(name, raw)| {
                let path = join(path, name);
                if name.is_empty() || name.len() > limits::COLUMN_NAME_BYTES {
                    return Err(at(
                        &path,
                        format!("a name has 1 to {} bytes", limits::COLUMN_NAME_BYTES),
                    ));
                }
                let column = self.column(&path, raw, depth + 1)?;
                if !column.nullable && !required.contains(name.as_str()) {
                    return Err(at(
                        &path,
                        "it may be left out but not be null, which a table cannot tell apart: list it in \
                         `required`, or add \"null\" to its type",
                    ));
                }
                Ok(Column { name: name.clone(), ..column })
            })
            .collect()
    }

    fn column(&mut self, path: &str, raw: &RawValue, depth: usize) -> Result<Column, SchemaError> {
        self.fields += 1;
        if self.fields > limits::SCHEMA_FIELDS {
            return Err(at(path, format!("more than {} fields", limits::SCHEMA_FIELDS)));
        }
        if depth > limits::SCHEMA_DEPTH {
            return Err(at(path, format!("nested deeper than {}", limits::SCHEMA_DEPTH)));
        }
        let node = self.node(path, raw)?;
        let types = node.ty.as_ref().ok_or_else(|| at(path, "`type` is missing"))?;
        let [ty] = types.real.as_slice() else {
            return Err(at(
                path,
                if types.real.is_empty() {
                    "a column of nothing but null carries nothing".to_owned()
                } else {
                    format!("a union of {} is no column", types.real.join(" and "))
                },
            ));
        };
        let kind = self.kind(path, ty, &node, depth)?;
        Ok(Column { name: String::new(), kind, nullable: types.null })
    }

    fn kind(
        &mut self,
        path: &str,
        ty: &str,
        node: &Node<'_>,
        depth: usize,
    ) -> Result<Kind, SchemaError> {
        if ty == "string"
            && let Some(encoding) = &node.encoding
        {
            return binary(path, encoding, node.format.as_deref());
        }
        match (ty, node.format.as_deref()) {
            ("object", _) => {
                let fixed = node.properties.as_ref().filter(|p| !p.is_empty());
                match (fixed, node.values) {
                    (Some(_), Some(_)) => Err(at(
                        path,
                        "`properties` makes a struct and a schema for `additionalProperties` a map: not both",
                    )),
                    (Some(properties), None) => {
                        Ok(Kind::Struct(self.fields(path, properties, &node.required, depth)?))
                    }
                    (None, Some(values)) => {
                        let value = self.column(&format!("{path}[…]"), values, depth + 1)?;
                        Ok(Kind::Map(Box::new(Column { name: "value".to_owned(), ..value })))
                    }
                    (None, None) => Err(at(
                        path,
                        "an object needs `properties` (a struct) or a schema for `additionalProperties` (a map)",
                    )),
                }
            }
            ("array", _) => {
                let items =
                    node.items.ok_or_else(|| at(path, "an array needs a schema for `items`"))?;
                let item = self.column(&format!("{path}[]"), items, depth + 1)?;
                Ok(Kind::List(Box::new(Column { name: "item".to_owned(), ..item })))
            }
            ("boolean", None) => Ok(Kind::Bool),
            ("integer", None | Some("int64")) => Ok(Kind::Int64),
            ("integer", Some("int32")) => Ok(Kind::Int32),
            ("number", None | Some("double")) => Ok(Kind::Float64),
            ("number", Some("float")) => Ok(Kind::Float32),
            ("string", None) => Ok(Kind::Text),
            ("string", Some(format @ ("date-time" | "date" | "time"))) => Err(at(
                path,
                format!("format `{format}` is no column type: store the time as an integer"),
            )),
            ("string", Some(format @ ("byte" | "binary"))) => Err(at(
                path,
                format!(
                    "format `{format}` is no column type: bytes need `contentEncoding` base64 or base16"
                ),
            )),
            (ty, None) => Err(at(path, format!("type `{ty}` is no column type"))),
            (ty, Some(format)) => {
                Err(at(path, format!("type `{ty}` with format `{format}` is no column type")))
            }
        }
    }
}

fn binary(path: &str, encoding: &str, format: Option<&str>) -> Result<Kind, SchemaError> {
    let encoding = match encoding {
        "base16" => Encoding::Base16,
        "base64" => Encoding::Base64,
        other => {
            return Err(at(
                path,
                format!("contentEncoding `{other}`: base16 and base64 are known"),
            ));
        }
    };
    let Some(format) = format else { return Ok(Kind::Binary { encoding, size: None }) };
    let digits = format.strip_prefix("bytes").filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    let size = digits.and_then(|d| d.parse().ok());
    match size {
        Some(n) if (1..=limits::FIXED_BYTES).contains(&n) => {
            Ok(Kind::Binary { encoding, size: Some(n) })
        }
        _ => Err(at(
            path,
            format!(
                "format `{format}` on bytes: only `bytesN` is known, N from 1 to {}",
                limits::FIXED_BYTES
            ),
        )),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn label(path: &str, keyword: &str) -> String {
    if path.is_empty() { keyword.to_owned() } else { format!("{path}: {keyword}") }
}

/// Appends a text as a JSON string.
pub(crate) fn write_text(out: &mut String, text: &str) {
    // A string always has a JSON form.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

fn write_object(out: &mut String, fields: &[Column], nullable: bool) {
    out.push_str(if nullable { r#"{"type":["object","null"]"# } else { r#"{"type":"object""# });
    out.push_str(r#","properties":{"#);
    for (i, column) in fields.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(out, &column.name);
        out.push(':');
        write_column(out, column);
    }
    out.push_str(r#"},"required":["#);
    for (i, column) in fields.iter().filter(|c| !c.nullable).enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(out, &column.name);
    }
    out.push_str("]}");
}

fn write_column(out: &mut String, column: &Column) {
    if let Kind::Struct(fields) = &column.kind {
        write_object(out, fields, column.nullable);
        out.pop();
        out.push_str(r#","additionalProperties":false}"#);
        return;
    }
    let (ty, format) = match &column.kind {
        Kind::Bool => ("boolean", None),
        Kind::Int32 => ("integer", Some("int32")),
        Kind::Int64 => ("integer", Some("int64")),
        Kind::Float32 => ("number", Some("float")),
        Kind::Float64 => ("number", Some("double")),
        Kind::Text | Kind::Binary { .. } => ("string", None),
        Kind::Struct(_) | Kind::Map(_) => ("object", None),
        Kind::List(_) => ("array", None),
    };
    // Writing to a text does not fail.
    let _ = match column.nullable {
        true => write!(out, r#"{{"type":["{ty}","null"]"#),
        false => write!(out, r#"{{"type":"{ty}""#),
    };
    if let Some(format) = format {
        let _ = write!(out, r#","format":"{format}""#);
    }
    match &column.kind {
        Kind::Binary { encoding, size } => {
            let _ = write!(out, r#","contentEncoding":"{}""#, encoding.name());
            if let Some(size) = size {
                let _ = write!(out, r#","format":"bytes{size}""#);
            }
        }
        Kind::Map(value) => {
            out.push_str(r#","additionalProperties":"#);
            write_column(out, value);
        }
        Kind::List(item) => {
            out.push_str(r#","items":"#);
            write_column(out, item);
        }
        _ => {}
    }
    out.push('}');
}
