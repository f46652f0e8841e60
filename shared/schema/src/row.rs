//! Rows of declared streams: JSON in, typed values out, or the column that does not fit.
//!
//! A row is read once, into its columns' types and order, and everything downstream (the table, a live frame, a
//! replayed one) is made from that, so that all of them agree. Numbers are not bent to fit: an integer column takes
//! no fraction and no truth value, a floating column takes only integers that it holds exactly.

use std::{collections::HashMap, fmt::Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::{
    fast,
    json::{self, Elements, Members, Value},
    schema::{Column, Encoding, Kind, RESERVED, Schema, write_text},
};

/// Integers up to this magnitude have an exact double.
const DOUBLE_EXACT: u64 = 1 << 53;
/// Integers up to this magnitude have an exact single.
const SINGLE_EXACT: u64 = 1 << 24;

/// Why a row does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", .column.as_ref().map(|c| format!("column `{c}`: ")).unwrap_or_default())]
pub struct RowError {
    /// The column's path; `None` if the row as a whole is at fault.
    pub column: Option<String>,
    /// What is wrong.
    pub reason: String,
}

/// A value of its column's type.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of [`Kind::Int32`].
    Int32(i32),
    /// Of [`Kind::Int64`].
    Int64(i64),
    /// Of [`Kind::Float32`]; finite.
    Float32(f32),
    /// Of [`Kind::Float64`]; finite.
    Float64(f64),
    /// Of [`Kind::Text`].
    Text(String),
    /// Of [`Kind::Binary`].
    Binary(Vec<u8>),
    /// Of [`Kind::Struct`]: one cell for each field, in the fields' order.
    Struct(Vec<Cell>),
    /// Of [`Kind::Map`]; no key stands twice.
    Map(Vec<(String, Cell)>),
    /// Of [`Kind::List`].
    List(Vec<Cell>),
}

/// A row: one cell for each column, in the columns' order.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(pub Vec<Cell>);

impl Schema {
    /// Reads and checks a row.
    ///
    /// # Errors
    /// [`RowError`], naming the first column that does not fit.
    pub fn row(&self, payload: &[u8]) -> Result<Row, RowError> {
        let whole = |reason: String| RowError { column: None, reason };
        let text =
            std::str::from_utf8(payload).map_err(|_| whole("the row is not UTF-8".into()))?;
        let raw: &RawValue =
            serde_json::from_str(text).map_err(|e| whole(format!("the row is not JSON: {e}")))?;
        let Value::Object(text) = Value::of(raw) else {
            return Err(whole(format!("a row is an object, not {}", Value::of(raw).type_name())));
        };
        fields(&mut Path::default(), self.columns(), text).map(Row)
    }

    /// A row's text as it is stored and served: what [`Schema::write`] makes of it.
    ///
    /// # Errors
    /// [`RowError`], naming the first column that does not fit.
    pub fn canonical(&self, payload: &Bytes) -> Result<Bytes, RowError> {
        if let Ok(text) = std::str::from_utf8(payload) {
            let mut out = Vec::with_capacity(payload.len() + 16);
            if fast::canonical(self.columns(), text, &mut out).is_some() {
                return Ok(if out == *payload { payload.clone() } else { out.into() });
            }
        }
        let row = self.row(payload)?;
        let mut out = String::with_capacity(payload.len() + 16);
        write_fields(&mut out, self.columns(), &row.0);
        Ok(out.into())
    }

    /// Writes a row as JSON: every column, in order, each in its type's own spelling.
    pub fn write(&self, row: &Row) -> String {
        let mut out = String::new();
        write_fields(&mut out, self.columns(), &row.0);
        out
    }
}

/// Where we are, for messages. Built only when something is wrong.
#[derive(Default)]
struct Path<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Field(&'a str),
    Unknown(String),
    Key(String),
    Item(usize),
}

impl Path<'_> {
    fn fails<T>(&self, reason: impl Into<String>) -> Result<T, RowError> {
        let mut path = String::new();
        for step in &self.0 {
            // Writing to a text does not fail.
            let dot = if path.is_empty() { "" } else { "." };
            let _ = match step {
                Step::Field(name) => write!(path, "{dot}{name}"),
                Step::Unknown(name) => write!(path, "{dot}{name}"),
                Step::Key(key) => write!(path, "[{key:?}]"),
                Step::Item(i) => write!(path, "[{i}]"),
            };
        }
        Err(RowError { column: (!path.is_empty()).then_some(path), reason: reason.into() })
    }
}

fn fields<'s>(
    path: &mut Path<'s>,
    columns: &'s [Column],
    text: &str,
) -> Result<Vec<Cell>, RowError> {
    let Ok(Members(members)) = serde_json::from_str(text) else {
        return path.fails("the text cannot be read: is a character escaped that does not exist?");
    };
    let mut found: Vec<Option<&RawValue>> = vec![None; columns.len()];
    // Rows mostly have their columns in order, so look first where the last one was found.
    let mut next = 0;
    for (name, value) in members {
        let at = (next..columns.len()).chain(0..next).find(|&i| columns[i].name == name);
        let Some(at) = at else {
            let reason = match (path.0.is_empty(), RESERVED.contains(&&*name)) {
                (true, true) => "the stream fills it in; a row may not bring it",
                (true, false) => "the stream has no such column",
                (false, _) => "there is no such field",
            };
            path.0.push(Step::Unknown(name.into_owned()));
            return path.fails(reason);
        };
        found[at] = Some(value);
        next = at + 1;
    }
    let mut cells = Vec::with_capacity(columns.len());
    for (column, value) in columns.iter().zip(found) {
        path.0.push(Step::Field(&column.name));
        cells.push(match value {
            Some(value) => cell(path, column, value)?,
            None if column.nullable => Cell::Null,
            None => return path.fails("it is missing"),
        });
        path.0.pop();
    }
    Ok(cells)
}

fn cell<'s>(path: &mut Path<'s>, column: &'s Column, raw: &RawValue) -> Result<Cell, RowError> {
    let value = Value::of(raw);
    if matches!(value, Value::Null) {
        return if column.nullable { Ok(Cell::Null) } else { path.fails("it may not be null") };
    }
    match (&column.kind, &value) {
        (Kind::Bool, Value::Bool(b)) => Ok(Cell::Bool(*b)),
        (Kind::Int64, Value::Number(n)) if json::is_whole(n) => match n.parse() {
            Ok(n) => Ok(Cell::Int64(n)),
            Err(_) => path.fails(format!("{} is outside the range of int64", shown(n))),
        },
        (Kind::Int32, Value::Number(n)) if json::is_whole(n) => match n.parse() {
            Ok(n) => Ok(Cell::Int32(n)),
            Err(_) => path.fails(format!("{} is outside the range of int32", shown(n))),
        },
        (Kind::Float64, Value::Number(n)) => Ok(Cell::Float64(float(path, n, DOUBLE_EXACT)?)),
        (Kind::Float32, Value::Number(n)) => {
            let wide = float(path, n, SINGLE_EXACT)?;
            let single = wide as f32;
            if single.is_finite() {
                Ok(Cell::Float32(single))
            } else {
                path.fails(format!("{} is outside the range of float", shown(n)))
            }
        }
        (Kind::Text, Value::Text(t)) => match json::text(t) {
            Ok(t) => Ok(Cell::Text(t.into_owned())),
            Err(e) => path.fails(format!("the text cannot be read: {e}")),
        },
        (Kind::Binary { encoding, size }, Value::Text(t)) => {
            let Ok(text) = json::text(t) else { return path.fails("the text cannot be read") };
            let Some(bytes) = decode(*encoding, &text) else {
                return path.fails(format!("the text is not {}", encoding.name()));
            };
            match size {
                Some(size) if bytes.len() != *size => {
                    path.fails(format!("{} bytes; it has {size} exactly", bytes.len()))
                }
                _ => Ok(Cell::Binary(bytes)),
            }
        }
        (Kind::Struct(columns), Value::Object(text)) => {
            fields(path, columns, text).map(Cell::Struct)
        }
        (Kind::Map(column), Value::Object(text)) => map(path, column, text),
        (Kind::List(item), Value::Array(text)) => {
            let Ok(Elements(elements)) = serde_json::from_str(text) else {
                return path.fails("the text cannot be read");
            };
            let mut cells = Vec::with_capacity(elements.len());
            for (i, element) in elements.into_iter().enumerate() {
                path.0.push(Step::Item(i));
                cells.push(cell(path, item, element)?);
                path.0.pop();
            }
            Ok(Cell::List(cells))
        }
        (kind, value) => {
            path.fails(format!("{} expected, not {}", expected(kind), value.type_name()))
        }
    }
}

fn map<'s>(path: &mut Path<'s>, column: &'s Column, text: &str) -> Result<Cell, RowError> {
    let Ok(Members(members)) = serde_json::from_str(text) else {
        return path.fails("the text cannot be read");
    };
    let mut cells: Vec<(String, Cell)> = Vec::with_capacity(members.len());
    let mut places: HashMap<String, usize> = HashMap::with_capacity(members.len());
    for (key, value) in members {
        path.0.push(Step::Key(key.to_string()));
        let value = cell(path, column, value)?;
        path.0.pop();
        // The last of equal keys counts, as everywhere in JSON.
        if let Some(&at) = places.get(&*key) {
            cells[at].1 = value;
        } else {
            places.insert(key.to_string(), cells.len());
            cells.push((key.into_owned(), value));
        }
    }
    Ok(Cell::Map(cells))
}

fn float(path: &Path<'_>, number: &str, exact: u64) -> Result<f64, RowError> {
    if json::is_whole(number) && !number.parse::<i64>().is_ok_and(|n| n.unsigned_abs() <= exact) {
        return path
            .fails(format!("the integer {} has no exact floating form here", shown(number)));
    }
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() => Ok(n),
        _ => path.fails(format!("{} is outside the range of a floating number", shown(number))),
    }
}

/// A number's text, short enough for a message.
fn shown(number: &str) -> &str {
    number.get(..32).unwrap_or(number)
}

fn expected(kind: &Kind) -> &'static str {
    match kind {
        Kind::Bool => "a boolean",
        Kind::Int32 | Kind::Int64 => "an integer",
        Kind::Float32 | Kind::Float64 => "a number",
        Kind::Text => "a string",
        Kind::Binary { encoding: Encoding::Base16, .. } => "a string in base16",
        Kind::Binary { encoding: Encoding::Base64, .. } => "a string in base64",
        Kind::Struct(_) | Kind::Map(_) => "an object",
        Kind::List(_) => "an array",
    }
}

fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Base64 => BASE64_STANDARD.decode(text).ok(),
        Encoding::Base16 => {
            let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
            let pairs = text.as_bytes().chunks(2);
            pairs.map(|p| Some(digit(p[0])? << 4 | digit(*p.get(1)?)?)).collect()
        }
    }
}

fn write_fields(out: &mut String, columns: &[Column], cells: &[Cell]) {
    out.push('{');
    for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(out, &column.name);
        out.push(':');
        write_cell(out, &column.kind, cell);
    }
    out.push('}');
}

fn write_cell(out: &mut String, kind: &Kind, cell: &Cell) {
    let number = |out: &mut String, n: f64| {
        // Finite, so it has a JSON form, with a fraction or an exponent.
        out.push_str(&serde_json::to_string(&n).unwrap_or_default());
    };
    match (kind, cell) {
        (_, Cell::Bool(b)) => out.push_str(if *b { "true" } else { "false" }),
        (_, Cell::Int32(n)) => drop(write!(out, "{n}")),
        (_, Cell::Int64(n)) => drop(write!(out, "{n}")),
        (_, Cell::Float32(n)) => number(out, f64::from(*n)),
        (_, Cell::Float64(n)) => number(out, *n),
        (_, Cell::Text(t)) => write_text(out, t),
        (Kind::Binary { encoding: Encoding::Base16, .. }, Cell::Binary(bytes)) => {
            out.push('"');
            for b in bytes {
                let _ = write!(out, "{b:02x}");
            }
            out.push('"');
        }
        (_, Cell::Binary(bytes)) => write_text(out, &BASE64_STANDARD.encode(bytes)),
        (Kind::Struct(columns), Cell::Struct(cells)) => write_fields(out, columns, cells),
        (Kind::Map(column), Cell::Map(entries)) => {
            out.push('{');
            for (i, (key, value)) in entries.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_text(out, key);
                out.push(':');
                write_cell(out, &column.kind, value);
            }
            out.push('}');
        }
        (Kind::List(item), Cell::List(cells)) => {
            out.push('[');
            for (i, cell) in cells.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_cell(out, &item.kind, cell);
            }
            out.push(']');
        }
        _ => out.push_str("null"),
    }
}
