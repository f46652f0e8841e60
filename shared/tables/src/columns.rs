//! Declared columns as Arrow fields and as Iceberg fields.

use std::{collections::HashMap, sync::Arc};

use arrow_schema::{DataType, Field, Fields};
use iceberg::spec::{ListType, MapType, NestedField, PrimitiveType, StructType, Type};
use tidewheel_schema::{Column, Kind, Schema};

/// Arrow field metadata that keeps how a binary column is written in JSON.
pub const ENCODING: &str = "streamcast.encoding";

/// The columns as Arrow fields.
pub fn arrow_fields(schema: &Schema) -> Fields {
    schema.columns().iter().map(arrow).collect()
}

/// The columns as Iceberg fields; ids count up from `last` + 1.
pub(crate) fn iceberg_fields(schema: &Schema, last: &mut i32) -> Vec<Arc<NestedField>> {
    numbered(schema.columns(), last)
}

fn arrow(column: &Column) -> Field {
    let child = |c: &Column| Arc::new(arrow(c));
    let ty = match &column.kind {
        Kind::Bool => DataType::Boolean,
        Kind::Int32 => DataType::Int32,
        Kind::Int64 => DataType::Int64,
        Kind::Float32 => DataType::Float32,
        Kind::Float64 => DataType::Float64,
        Kind::Text => DataType::Utf8,
        Kind::Binary { size: None, .. } => DataType::Binary,
        Kind::Binary { size: Some(n), .. } => DataType::FixedSizeBinary(*n as i32),
        Kind::Struct(fields) => DataType::Struct(fields.iter().map(arrow).collect()),
        Kind::List(item) => DataType::List(child(item)),
        Kind::Map(value) => {
            let key = Field::new("key", DataType::Utf8, false);
            let entries = DataType::Struct(vec![Arc::new(key), child(value)].into());
            DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
        }
    };
    let field = Field::new(&column.name, ty, column.nullable);
    match &column.kind {
        Kind::Binary { encoding, .. } => {
            field.with_metadata(HashMap::from([(ENCODING.to_owned(), encoding.name().to_owned())]))
        }
        _ => field,
    }
}

fn iceberg(column: &Column, last: &mut i32) -> Type {
    let primitive = |p| Type::Primitive(p);
    let mut next = || {
        *last += 1;
        *last
    };
    match &column.kind {
        Kind::Bool => primitive(PrimitiveType::Boolean),
        Kind::Int32 => primitive(PrimitiveType::Int),
        Kind::Int64 => primitive(PrimitiveType::Long),
        Kind::Float32 => primitive(PrimitiveType::Float),
        Kind::Float64 => primitive(PrimitiveType::Double),
        Kind::Text => primitive(PrimitiveType::String),
        Kind::Binary { size: None, .. } => primitive(PrimitiveType::Binary),
        Kind::Binary { size: Some(n), .. } => primitive(PrimitiveType::Fixed(*n as u64)),
        Kind::Struct(fields) => Type::Struct(StructType::new(numbered(fields, last))),
        Kind::List(item) => {
            let id = next();
            let ty = iceberg(item, last);
            Type::List(ListType::new(NestedField::list_element(id, ty, !item.nullable).into()))
        }
        Kind::Map(value) => {
            let (key, id) = (next(), next());
            let ty = iceberg(value, last);
            Type::Map(MapType::new(
                NestedField::map_key_element(key, Type::Primitive(PrimitiveType::String)).into(),
                NestedField::map_value_element(id, ty, !value.nullable).into(),
            ))
        }
    }
}

fn numbered(columns: &[Column], last: &mut i32) -> Vec<Arc<NestedField>> {
    let ids: Vec<i32> = columns
        .iter()
        .map(|_| {
            *last += 1;
            *last
        })
        .collect();
    let field = |(c, id): (&Column, i32)| {
        Arc::new(NestedField::new(id, &c.name, iceberg(c, last), !c.nullable))
    };
    columns.iter().zip(ids).map(field).collect()
}
