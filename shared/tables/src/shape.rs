//! The shape of a table: which columns a stream's records become, and in which order.
//!
//! A stream without a declared schema publishes the envelope and the payload's text, and no record of it can fail to
//! fit. A declared one publishes exactly `litelink_offset` (the offset plus one: readers count from 1), its own
//! columns, and `streamcast_ts`; nothing else, because readers hand every further column to their users.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    builder::{
        BooleanBuilder, FixedSizeBinaryBuilder, Float32Builder, Float64Builder, Int32Builder,
        Int64Builder, LargeBinaryBuilder, StringBuilder,
    },
    new_empty_array,
};
use arrow_array::{ListArray, MapArray, StructArray};
use arrow_buffer::{NullBufferBuilder, OffsetBufferBuilder};
use arrow_schema::{ArrowError, DataType, Field, Fields, SchemaRef};
use iceberg::spec::{
    NestedField, NullOrder, PrimitiveType, SortDirection, SortField, SortOrder, Transform, Type,
};
use tidewheel_engine::Record;

use tidewheel_schema::{Cell, Column, Kind, Row, RowError, Schema};

use crate::{Error, columns};

/// What a stream's records become.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// The envelope and the payload as text.
    Envelope,
    /// Declared columns.
    Declared(Arc<Schema>),
}

/// Columns of the envelope that are never null, in order, before the two that may be and the payload.
const ENVELOPE: [(&str, PrimitiveType, bool); 8] = [
    ("partition", PrimitiveType::String, true),
    ("offset", PrimitiveType::Long, true),
    ("time", PrimitiveType::Timestamptz, true),
    ("id", PrimitiveType::String, true),
    ("transaction_id", PrimitiveType::String, true),
    ("key", PrimitiveType::String, false),
    ("headers", PrimitiveType::String, false),
    ("payload", PrimitiveType::String, true),
];

/// A record that does not fit its stream's schema.
pub(crate) struct Unfit {
    pub(crate) offset: u64,
    pub(crate) error: RowError,
}

/// The rows of some records, and the record that stopped them.
pub(crate) struct Rows {
    pub(crate) batch: RecordBatch,
    pub(crate) unfit: Option<Unfit>,
}

impl Shape {
    /// The table's schema. `earlier` are the schemas of the generations before, whose fields keep their ids.
    pub(crate) fn iceberg(&self, earlier: &[Arc<Schema>]) -> Result<iceberg::spec::Schema, Error> {
        let fields = match self {
            Shape::Envelope => ENVELOPE
                .iter()
                .zip(1..)
                .map(|((name, ty, required), id)| {
                    Arc::new(NestedField::new(id, *name, Type::Primitive(ty.clone()), *required))
                })
                .collect(),
            Shape::Declared(schema) => {
                let all: Vec<_> = earlier.iter().chain([schema]).cloned().collect();
                columns::table_fields(&all)
            }
        };
        Ok(iceberg::spec::Schema::builder().with_fields(fields).build()?)
    }

    /// The columns that rows are ordered by: first those that were asked for.
    pub(crate) fn row_order<'a>(&self, sort_by: &'a [String]) -> Vec<&'a str> {
        let own: &[&str] = match self {
            Shape::Envelope => &["partition", "offset"],
            Shape::Declared(_) => &["litelink_offset"],
        };
        sort_by.iter().map(String::as_str).chain(own.iter().copied()).collect()
    }

    /// The order of the rows, for the table's schema.
    pub(crate) fn sort_order(
        &self,
        schema: &iceberg::spec::Schema,
        sort_by: &[String],
    ) -> Result<SortOrder, Error> {
        let mut order = SortOrder::builder();
        order.with_order_id(1);
        for name in self.row_order(sort_by) {
            let id = schema
                .field_id_by_name(name)
                .ok_or_else(|| Error::Corrupt(format!("the table has no column `{name}`")))?;
            order.with_sort_field(
                SortField::builder()
                    .source_id(id)
                    .transform(Transform::Identity)
                    .direction(SortDirection::Ascending)
                    .null_order(NullOrder::Last)
                    .build(),
            );
        }
        Ok(order.build(schema)?)
    }

    /// Turns records into rows of the table's Arrow schema. Stops before the first that does not fit.
    pub(crate) fn rows(
        &self,
        arrow: &SchemaRef,
        partition: &str,
        records: &[Record],
    ) -> Result<Rows, Error> {
        match self {
            Shape::Envelope => {
                Ok(Rows { batch: envelope(arrow, partition, records)?, unfit: None })
            }
            Shape::Declared(schema) => declared(schema, arrow, records),
        }
    }
}

fn envelope(arrow: &SchemaRef, partition: &str, records: &[Record]) -> Result<RecordBatch, Error> {
    let texts = |text: &dyn Fn(&Record) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(records.iter().map(text)))
    };
    // A payload that came in is JSON and so is UTF-8; if one ever is not, its row is still there.
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let columns: Vec<ArrayRef> = vec![
        texts(&|_| partition.to_owned()),
        Arc::new(Int64Array::from_iter_values(records.iter().map(|r| r.offset as i64))),
        Arc::new(
            TimestampMicrosecondArray::from_iter_values(records.iter().map(|r| r.time_us))
                .with_timezone("+00:00"),
        ),
        texts(&|r| r.id.to_string()),
        texts(&|r| r.transaction_id.clone()),
        Arc::new(records.iter().map(|r| r.key.as_deref()).collect::<StringArray>()),
        Arc::new(records.iter().map(|r| r.headers.as_deref().map(lossy)).collect::<StringArray>()),
        texts(&|r| lossy(&r.payload)),
    ];
    Ok(RecordBatch::try_new(arrow.clone(), columns)?)
}

fn declared(schema: &Schema, arrow: &SchemaRef, records: &[Record]) -> Result<Rows, Error> {
    let mut columns: Vec<Builder> = schema.columns().iter().map(Builder::of).collect();
    let mut unfit = None;
    let mut taken = 0;
    for record in records {
        match schema.row(&record.payload) {
            Ok(Row(cells)) => {
                columns
                    .iter_mut()
                    .zip(&cells)
                    .try_for_each(|(column, cell)| column.append(cell))?;
                taken += 1;
            }
            Err(error) => {
                unfit = Some(Unfit { offset: record.offset, error });
                break;
            }
        }
    }
    let records = &records[..taken];
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len() + 2);
    arrays.push(Arc::new(Int64Array::from_iter_values(
        records.iter().map(|r| table_offset(r.offset)),
    )));
    // The fields between the first and the last are the declared ones.
    for (column, field) in columns.into_iter().zip(arrow.fields().iter().skip(1)) {
        arrays.push(column.finish(field)?);
    }
    arrays.push(Arc::new(Int64Array::from_iter_values(records.iter().map(|r| r.time_us))));
    Ok(Rows { batch: RecordBatch::try_new(arrow.clone(), arrays)?, unfit })
}

/// The offset that readers of a declared stream see: they count from 1.
pub(crate) fn table_offset(offset: u64) -> i64 {
    offset as i64 + 1
}

/// Builds one column from cells that were checked against it.
enum Builder {
    Bool(BooleanBuilder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Text(StringBuilder),
    Binary(LargeBinaryBuilder),
    Fixed(FixedSizeBinaryBuilder),
    Struct(Vec<Builder>, NullBufferBuilder),
    Map(StringBuilder, Box<Builder>, OffsetBufferBuilder<i32>, NullBufferBuilder),
    List(Box<Builder>, OffsetBufferBuilder<i32>, NullBufferBuilder),
}

fn nulls() -> NullBufferBuilder {
    NullBufferBuilder::new(0)
}

impl Builder {
    fn of(column: &Column) -> Self {
        let offsets = || OffsetBufferBuilder::new(0);
        match &column.kind {
            Kind::Bool => Builder::Bool(BooleanBuilder::new()),
            Kind::Int32 => Builder::Int32(Int32Builder::new()),
            Kind::Int64 => Builder::Int64(Int64Builder::new()),
            Kind::Float32 => Builder::Float32(Float32Builder::new()),
            Kind::Float64 => Builder::Float64(Float64Builder::new()),
            Kind::Text => Builder::Text(StringBuilder::new()),
            Kind::Binary { size: None, .. } => Builder::Binary(LargeBinaryBuilder::new()),
            Kind::Binary { size: Some(n), .. } => {
                Builder::Fixed(FixedSizeBinaryBuilder::new(*n as i32))
            }
            Kind::Struct(fields) => {
                Builder::Struct(fields.iter().map(Builder::of).collect(), nulls())
            }
            Kind::Map(value) => {
                Builder::Map(StringBuilder::new(), Box::new(Builder::of(value)), offsets(), nulls())
            }
            Kind::List(item) => Builder::List(Box::new(Builder::of(item)), offsets(), nulls()),
        }
    }

    fn append(&mut self, cell: &Cell) -> Result<(), ArrowError> {
        match (self, cell) {
            (Builder::Bool(b), Cell::Bool(v)) => b.append_value(*v),
            (Builder::Bool(b), _) => b.append_null(),
            (Builder::Int32(b), Cell::Int32(v)) => b.append_value(*v),
            (Builder::Int32(b), _) => b.append_null(),
            (Builder::Int64(b), Cell::Int64(v)) => b.append_value(*v),
            (Builder::Int64(b), _) => b.append_null(),
            (Builder::Float32(b), Cell::Float32(v)) => b.append_value(*v),
            (Builder::Float32(b), _) => b.append_null(),
            (Builder::Float64(b), Cell::Float64(v)) => b.append_value(*v),
            (Builder::Float64(b), _) => b.append_null(),
            (Builder::Text(b), Cell::Text(v)) => b.append_value(v),
            (Builder::Text(b), _) => b.append_null(),
            (Builder::Binary(b), Cell::Binary(v)) => b.append_value(v),
            (Builder::Binary(b), _) => b.append_null(),
            (Builder::Fixed(b), Cell::Binary(v)) => b.append_value(v)?,
            (Builder::Fixed(b), _) => b.append_null(),
            (Builder::Struct(fields, nulls), Cell::Struct(cells)) => {
                fields.iter_mut().zip(cells).try_for_each(|(f, c)| f.append(c))?;
                nulls.append_non_null();
            }
            (Builder::Struct(fields, nulls), _) => {
                fields.iter_mut().try_for_each(Builder::append_filler)?;
                nulls.append_null();
            }
            (Builder::Map(keys, values, offsets, nulls), Cell::Map(entries)) => {
                for (key, value) in entries {
                    keys.append_value(key);
                    values.append(value)?;
                }
                offsets.push_length(entries.len());
                nulls.append_non_null();
            }
            (Builder::Map(_, _, offsets, nulls), _) => {
                offsets.push_length(0);
                nulls.append_null();
            }
            (Builder::List(items, offsets, nulls), Cell::List(cells)) => {
                cells.iter().try_for_each(|c| items.append(c))?;
                offsets.push_length(cells.len());
                nulls.append_non_null();
            }
            (Builder::List(_, offsets, nulls), _) => {
                offsets.push_length(0);
                nulls.append_null();
            }
        }
        Ok(())
    }

    /// A place holder under a struct that is null: its fields may not be null themselves.
    fn append_filler(&mut self) -> Result<(), ArrowError> {
        match self {
            Builder::Bool(b) => b.append_value(false),
            Builder::Int32(b) => b.append_value(0),
            Builder::Int64(b) => b.append_value(0),
            Builder::Float32(b) => b.append_value(0.0),
            Builder::Float64(b) => b.append_value(0.0),
            Builder::Text(b) => b.append_value(""),
            Builder::Binary(b) => b.append_value([]),
            Builder::Fixed(b) => b.append_null(),
            Builder::Struct(fields, nulls) => {
                fields.iter_mut().try_for_each(Builder::append_filler)?;
                nulls.append_non_null();
            }
            Builder::Map(_, _, offsets, nulls) | Builder::List(_, offsets, nulls) => {
                offsets.push_length(0);
                nulls.append_non_null();
            }
        }
        Ok(())
    }

    fn finish(self, field: &Field) -> Result<ArrayRef, ArrowError> {
        let mismatch =
            || ArrowError::SchemaError(format!("column `{}` has another type", field.name()));
        Ok(match self {
            Builder::Bool(mut b) => Arc::new(b.finish()),
            Builder::Int32(mut b) => Arc::new(b.finish()),
            Builder::Int64(mut b) => Arc::new(b.finish()),
            Builder::Float32(mut b) => Arc::new(b.finish()),
            Builder::Float64(mut b) => Arc::new(b.finish()),
            Builder::Text(mut b) => Arc::new(b.finish()),
            Builder::Binary(mut b) => Arc::new(b.finish()),
            Builder::Fixed(mut b) => Arc::new(b.finish()),
            Builder::Struct(fields, mut nulls) => {
                let DataType::Struct(children) = field.data_type() else { return Err(mismatch()) };
                let length = nulls.len();
                let arrays = finish_all(fields, children)?;
                Arc::new(StructArray::try_new_with_length(
                    children.clone(),
                    arrays,
                    nulls.finish(),
                    length,
                )?)
            }
            Builder::Map(mut keys, values, offsets, mut nulls) => {
                let DataType::Map(entries, ordered) = field.data_type() else {
                    return Err(mismatch());
                };
                let DataType::Struct(children) = entries.data_type() else {
                    return Err(mismatch());
                };
                let [_, value] = children.as_ref() else { return Err(mismatch()) };
                let arrays = vec![Arc::new(keys.finish()) as ArrayRef, values.finish(value)?];
                let structs = StructArray::try_new(children.clone(), arrays, None)?;
                Arc::new(MapArray::try_new(
                    entries.clone(),
                    offsets.finish(),
                    structs,
                    nulls.finish(),
                    *ordered,
                )?)
            }
            Builder::List(items, offsets, mut nulls) => {
                let DataType::List(item) = field.data_type() else { return Err(mismatch()) };
                let items = items.finish(item)?;
                Arc::new(ListArray::try_new(item.clone(), offsets.finish(), items, nulls.finish())?)
            }
        })
    }
}

fn finish_all(builders: Vec<Builder>, fields: &Fields) -> Result<Vec<ArrayRef>, ArrowError> {
    builders.into_iter().zip(fields).map(|(b, f)| b.finish(f)).collect()
}

/// An empty batch, for a table without rows.
pub(crate) fn empty(arrow: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = arrow.fields().iter().map(|f| new_empty_array(f.data_type())).collect();
    RecordBatch::try_new(arrow.clone(), columns)
}
