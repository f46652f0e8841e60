//! What sealed logs hold, for readers that skip those that cannot match: `manifest.parquet`.
//!
//! One row for each log: its name, its offsets, how many rows it has, and for every numeric and boolean column the least and
//! the greatest value, nulls and values. All of it is what the table's own manifests say; no data file is read.

use std::{collections::HashMap, sync::Arc};

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, StructArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields, Schema as ArrowSchema};
use bytes::Bytes;
use iceberg::spec::{Datum, PrimitiveLiteral};
use parquet::arrow::ArrowWriter;
use tidewheel_schema::Kind;

use crate::{
    Error,
    directory::directory_name,
    logs::{Logs, Target},
    manifests::{Live, live_files},
    snapshot::Base,
    stream_metadata::Progress,
    tables::Tables,
};

/// Of one column of one log.
#[derive(Clone, Default)]
struct Statistic {
    min: Option<PrimitiveLiteral>,
    max: Option<PrimitiveLiteral>,
    nulls: i64,
    values: i64,
}

/// One log.
struct Entry {
    name: String,
    start: i64,
    end: i64,
    /// `None` of a log that retention is at: a reader takes fewer rows for a table that is not whole.
    rows: Option<i64>,
    columns: HashMap<String, Statistic>,
}

/// The manifest of the sealed logs: of those that are whole the last `kept`, since retention drops the first.
pub(crate) async fn manifest(
    tables: &Tables,
    targets: &[Target],
    logs: &Logs,
    kept: usize,
    progress: Progress,
) -> Result<Bytes, Error> {
    let live = progress.whole.min(logs.logs.len().saturating_sub(1));
    let mut entries = Vec::new();
    let mut columns: Vec<(String, DataType)> = Vec::new();
    for (target, log) in targets.iter().zip(&logs.logs).take(live).skip(live.saturating_sub(kept)) {
        let ours = log.schema.columns().iter().filter_map(|column| {
            let ty = match column.kind {
                Kind::Bool => DataType::Boolean,
                Kind::Int32 => DataType::Int32,
                Kind::Int64 => DataType::Int64,
                Kind::Float32 => DataType::Float32,
                Kind::Float64 => DataType::Float64,
                _ => return None,
            };
            Some((column.name.clone(), ty))
        });
        let ours: Vec<_> = ours.chain([("streamcast_ts".to_owned(), DataType::Int64)]).collect();
        let mut entry = Entry {
            name: directory_name(&log.name),
            start: log.start.max(logs.floor) as i64 + 1,
            end: log.end.unwrap_or(log.start) as i64 + 1,
            rows: (log.start >= logs.floor).then_some(0),
            columns: HashMap::new(),
        };
        let head = tables.head(target).await?;
        if let Some(stem) = &head.stem {
            let files = tables.files(&head);
            let base = Base::load(&files, stem).await?;
            let live = live_files(&files, base.manifests()).await?;
            let rows = live.iter().map(|f| f.data.record_count() as i64).sum();
            entry.rows = entry.rows.map(|_| rows);
            for (name, _) in &ours {
                let id = base.schema().field_id_by_name(name);
                if let Some(found) = id.and_then(|id| statistic(&live, id)) {
                    entry.columns.insert(name.clone(), found);
                }
            }
        }
        entries.push(entry);
        for (name, ty) in ours {
            if !columns.iter().any(|(known, _)| *known == name) {
                columns.push((name, ty));
            }
        }
    }
    write(&entries, &columns)
}

/// A column's statistic over all files; `None` if a file does not say.
fn statistic(live: &[Live], id: i32) -> Option<Statistic> {
    let mut all = Statistic::default();
    for file in live.iter().map(|f| &f.data) {
        let values = *file.value_counts().get(&id)? as i64;
        let nulls = file.null_value_counts().get(&id).map_or(0, |n| *n as i64);
        all.values += values;
        all.nulls += nulls;
        if nulls == values {
            continue;
        }
        let literal = |datum: &Datum| datum.literal().clone();
        let low = literal(file.lower_bounds().get(&id)?);
        let high = literal(file.upper_bounds().get(&id)?);
        let least = all.min.take().filter(|min| less(min, &low));
        all.min = Some(least.unwrap_or(low));
        let most = all.max.take().filter(|max| less(&high, max));
        all.max = Some(most.unwrap_or(high));
    }
    Some(all)
}

fn less(a: &PrimitiveLiteral, b: &PrimitiveLiteral) -> bool {
    match (a, b) {
        (PrimitiveLiteral::Boolean(a), PrimitiveLiteral::Boolean(b)) => a < b,
        (PrimitiveLiteral::Int(a), PrimitiveLiteral::Int(b)) => a < b,
        (PrimitiveLiteral::Long(a), PrimitiveLiteral::Long(b)) => a < b,
        (PrimitiveLiteral::Float(a), PrimitiveLiteral::Float(b)) => a < b,
        (PrimitiveLiteral::Double(a), PrimitiveLiteral::Double(b)) => a < b,
        _ => false,
    }
}

/// Bounds as an array of the column's type.
fn bounds(ty: &DataType, values: Vec<Option<&PrimitiveLiteral>>) -> ArrayRef {
    macro_rules! array {
        ($array:ty, $variant:ident, $v:ident => $value:expr) => {
            Arc::new(<$array>::from_iter(values.into_iter().map(|v| match v {
                Some(PrimitiveLiteral::$variant($v)) => Some($value),
                _ => None,
            })))
        };
    }
    match ty {
        DataType::Boolean => array!(BooleanArray, Boolean, v => *v),
        DataType::Int32 => array!(Int32Array, Int, v => *v),
        DataType::Float32 => array!(Float32Array, Float, v => v.0),
        DataType::Float64 => array!(Float64Array, Double, v => v.0),
        _ => array!(Int64Array, Long, v => *v),
    }
}

fn write(entries: &[Entry], columns: &[(String, DataType)]) -> Result<Bytes, Error> {
    let longs = |of: &dyn Fn(&Entry) -> Option<i64>| -> ArrayRef {
        Arc::new(entries.iter().map(of).collect::<Int64Array>())
    };
    let mut fields = vec![
        Field::new("log", DataType::Utf8, false),
        Field::new("start_offset", DataType::Int64, false),
        Field::new("end_offset", DataType::Int64, true),
        Field::new("record_count", DataType::Int64, true),
    ];
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(entries.iter().map(|e| &e.name))),
        longs(&|e| Some(e.start)),
        longs(&|e| Some(e.end)),
        longs(&|e| e.rows),
    ];
    for (name, ty) in columns {
        let found: Vec<_> = entries.iter().map(|e| e.columns.get(name)).collect();
        let float = matches!(ty, DataType::Float32 | DataType::Float64);
        let count = |of: &dyn Fn(&Statistic) -> i64| -> ArrayRef {
            Arc::new(found.iter().map(|s| s.map(of)).collect::<Int64Array>())
        };
        let mut children = vec![
            Field::new("min", ty.clone(), true),
            Field::new("max", ty.clone(), true),
            Field::new("null_count", DataType::Int64, true),
            Field::new("value_count", DataType::Int64, true),
        ];
        let mut values = vec![
            bounds(ty, found.iter().map(|s| s.and_then(|s| s.min.as_ref())).collect()),
            bounds(ty, found.iter().map(|s| s.and_then(|s| s.max.as_ref())).collect()),
            count(&|s| s.nulls),
            count(&|s| s.values),
        ];
        if float {
            // A row with one is refused.
            children.push(Field::new("nan_count", DataType::Int64, true));
            values.push(count(&|_| 0));
        }
        let children = Fields::from(children);
        let nulls = NullBuffer::from_iter(found.iter().map(Option::is_some));
        fields.push(Field::new(name, DataType::Struct(children.clone()), true));
        arrays.push(Arc::new(StructArray::try_new(children, values, Some(nulls))?));
    }
    let schema = Arc::new(ArrowSchema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), arrays)?;
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, schema, None)?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(out.into())
}
