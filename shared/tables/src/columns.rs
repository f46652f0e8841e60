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

/// The ids of a stream's fields: what keeps its name keeps its id, in every generation that has it.
#[derive(Default)]
struct FieldIds {
    known: HashMap<String, i32>,
    last: i32,
}

impl FieldIds {
    fn of(&mut self, path: &str) -> i32 {
        match self.known.get(path) {
            Some(id) => *id,
            None => {
                self.last += 1;
                self.known.insert(path.to_owned(), self.last);
                self.last
            }
        }
    }
}

/// The fields of a table of the last of these schemas, of which each followed the one before: the offset, the columns, the
/// time.
pub(crate) fn table_fields(generations: &[Arc<Schema>]) -> Vec<Arc<NestedField>> {
    let long = || Type::Primitive(PrimitiveType::Long);
    let mut ids = FieldIds::default();
    let offset = NestedField::required(ids.of("litelink_offset"), "litelink_offset", long());
    let time = NestedField::required(ids.of("streamcast_ts"), "streamcast_ts", long());
    let each = generations.iter().map(|schema| numbered(schema.columns(), "", &mut ids));
    let columns = each.last().unwrap_or_default();
    [Arc::new(offset)].into_iter().chain(columns).chain([Arc::new(time)]).collect()
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

fn iceberg(column: &Column, path: &str, ids: &mut FieldIds) -> Type {
    let primitive = |p| Type::Primitive(p);
    match &column.kind {
        Kind::Bool => primitive(PrimitiveType::Boolean),
        Kind::Int32 => primitive(PrimitiveType::Int),
        Kind::Int64 => primitive(PrimitiveType::Long),
        Kind::Float32 => primitive(PrimitiveType::Float),
        Kind::Float64 => primitive(PrimitiveType::Double),
        Kind::Text => primitive(PrimitiveType::String),
        Kind::Binary { size: None, .. } => primitive(PrimitiveType::Binary),
        Kind::Binary { size: Some(n), .. } => primitive(PrimitiveType::Fixed(*n as u64)),
        Kind::Struct(fields) => Type::Struct(StructType::new(numbered(fields, path, ids))),
        Kind::List(item) => {
            let path = format!("{path}.element");
            let id = ids.of(&path);
            let ty = iceberg(item, &path, ids);
            Type::List(ListType::new(NestedField::list_element(id, ty, !item.nullable).into()))
        }
        Kind::Map(value) => {
            let key = ids.of(&format!("{path}.key"));
            let path = format!("{path}.value");
            let id = ids.of(&path);
            let ty = iceberg(value, &path, ids);
            Type::Map(MapType::new(
                NestedField::map_key_element(key, Type::Primitive(PrimitiveType::String)).into(),
                NestedField::map_value_element(id, ty, !value.nullable).into(),
            ))
        }
    }
}

fn numbered(columns: &[Column], above: &str, ids: &mut FieldIds) -> Vec<Arc<NestedField>> {
    // Dots cannot stand for themselves: a name may have some.
    let path = |c: &Column| format!("{above}.{}", c.name.replace('.', ".."));
    let own: Vec<i32> = columns.iter().map(|c| ids.of(&path(c))).collect();
    let field = |(c, id): (&Column, i32)| {
        Arc::new(NestedField::new(id, &c.name, iceberg(c, &path(c), ids), !c.nullable))
    };
    columns.iter().zip(own).map(field).collect()
}
