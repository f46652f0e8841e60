//! Columns back into rows: what a table or a file that is loaded holds, as the text that the log has.
//!
//! The same value is the same text wherever it comes from: cells are written by [`Schema::write`], as they are when a
//! row comes in as JSON.

use arrow_array::{
    Array, ArrayRef, RecordBatch,
    cast::AsArray,
    types::{Float32Type, Float64Type, Int32Type, Int64Type},
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use bytes::Bytes;
use tidewheel_schema::{Cell, Column, Kind, Row, Schema};

use crate::{Error, columns::arrow_fields};

/// Says why a file of these columns cannot be rows of a schema; nothing if it can.
pub(crate) fn misfit(schema: &Schema, arrow: &ArrowSchema) -> Option<String> {
    let unknown =
        arrow.fields().iter().find(|f| !schema.columns().iter().any(|c| c.name == *f.name()));
    if let Some(field) = unknown {
        return Some(format!("column `{}` is not declared", field.name()));
    }
    schema.columns().iter().find_map(|column| match arrow.field_with_name(&column.name) {
        Ok(field) => unfit(column, field),
        Err(_) if column.nullable => None,
        Err(_) => Some(format!("column `{}` is missing and may not be null", column.name)),
    })
}

/// Why a field cannot be a column; widths may grow, and nothing may be lost.
fn unfit(column: &Column, field: &Field) -> Option<String> {
    use DataType::*;
    let fits = match (&column.kind, field.data_type()) {
        (Kind::Bool, Boolean) => true,
        (Kind::Int32, Int8 | Int16 | Int32 | UInt8 | UInt16) => true,
        (Kind::Int64, Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32) => true,
        (Kind::Float32, Float32) | (Kind::Float64, Float32 | Float64) => true,
        (Kind::Text, Utf8 | LargeUtf8 | Utf8View) => true,
        (Kind::Binary { size: None, .. }, Binary | LargeBinary | BinaryView) => true,
        (Kind::Binary { size: Some(n), .. }, FixedSizeBinary(m)) => *m as usize == *n,
        (Kind::Struct(children), Struct(fields)) => {
            let mut named = children.iter().zip(fields);
            return match (children.len() == fields.len(), named.find(|(c, f)| c.name != *f.name()))
            {
                (true, None) => children.iter().zip(fields).find_map(|(c, f)| unfit(c, f)),
                _ => Some(format!("column `{}` has other fields than declared", column.name)),
            };
        }
        (Kind::Map(value), Map(entries, _)) => match entries.data_type() {
            Struct(pair) if pair.len() == 2 => return unfit(value, &pair[1]),
            _ => false,
        },
        (Kind::List(item), List(of) | LargeList(of)) => return unfit(item, of),
        _ => false,
    };
    (!fits).then(|| {
        format!(
            "column `{}` has the type {}, which is not what was declared",
            column.name,
            field.data_type()
        )
    })
}

/// The rows of a batch as texts. Columns are found by their name; what is not there is null.
pub(crate) fn texts(schema: &Schema, batch: &RecordBatch) -> Result<Vec<Bytes>, Error> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let fields = arrow_fields(schema);
    let mut arrays: Vec<Option<ArrayRef>> = Vec::with_capacity(fields.len());
    for field in fields.iter() {
        arrays.push(match batch.column_by_name(field.name()) {
            Some(array) if array.data_type() == field.data_type() => Some(array.clone()),
            Some(array) => Some(cast_with_options(array, field.data_type(), &options)?),
            None => None,
        });
    }
    let mut rows = Vec::with_capacity(batch.num_rows());
    for at in 0..batch.num_rows() {
        let columns = schema.columns().iter().zip(&arrays);
        let cells = columns.map(|(column, array)| match array {
            Some(array) => cell(column, array, at),
            None => Cell::Null,
        });
        rows.push(schema.write(&Row(cells.collect())).into());
    }
    Ok(rows)
}

/// One value of a column of the column's own Arrow type.
fn cell(column: &Column, array: &ArrayRef, at: usize) -> Cell {
    if array.is_null(at) {
        return Cell::Null;
    }
    match &column.kind {
        Kind::Bool => Cell::Bool(array.as_boolean().value(at)),
        Kind::Int32 => Cell::Int32(array.as_primitive::<Int32Type>().value(at)),
        Kind::Int64 => Cell::Int64(array.as_primitive::<Int64Type>().value(at)),
        Kind::Float32 => Cell::Float32(array.as_primitive::<Float32Type>().value(at)),
        Kind::Float64 => Cell::Float64(array.as_primitive::<Float64Type>().value(at)),
        Kind::Text => Cell::Text(array.as_string::<i32>().value(at).to_owned()),
        Kind::Binary { size: None, .. } => {
            Cell::Binary(array.as_binary::<i32>().value(at).to_vec())
        }
        Kind::Binary { size: Some(_), .. } => {
            Cell::Binary(array.as_fixed_size_binary().value(at).to_vec())
        }
        Kind::Struct(children) => {
            let fields = children.iter().zip(array.as_struct().columns());
            Cell::Struct(fields.map(|(c, a)| cell(c, a, at)).collect())
        }
        Kind::Map(value) => {
            let entries = array.as_map().value(at);
            let (keys, values) = (entries.column(0).as_string::<i32>(), entries.column(1));
            let pairs =
                (0..entries.len()).map(|i| (keys.value(i).to_owned(), cell(value, values, i)));
            Cell::Map(pairs.collect())
        }
        Kind::List(item) => {
            let items = array.as_list::<i32>().value(at);
            Cell::List((0..items.len()).map(|i| cell(item, &items, i)).collect())
        }
    }
}
