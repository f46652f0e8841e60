//! Loading files into declared streams.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, LargeStringArray, RecordBatch};
use tidewheel_engine::{Declaration, Engine, Settings};
use tidewheel_schema::Schema;
use tidewheel_store::{Env, Memory};
use tidewheel_tables::{IngestError, ingest};

use crate::fake::START_US;

async fn stream() -> Engine {
    let env = Env::simulated(3, START_US, 0);
    let engine = Engine::new(Arc::new(Memory::new()), env, Settings::default());
    let schema = r#"{"properties":{"n":{"type":"integer"},"s":{"type":["string","null"]}},"required":["n"]}"#;
    let schema = Some(Arc::new(Schema::compile(schema).unwrap()));
    engine.declare("s", Declaration { schema, ..Declaration::default() }).await.unwrap();
    engine
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_file_are_rows_of_the_log() {
    let engine = stream().await;
    let one = batch(vec![
        ("s", Arc::new(LargeStringArray::from(vec![Some("ü"), None])) as ArrayRef),
        ("n", Arc::new(Int32Array::from(vec![1, 2]))),
    ]);
    let two = batch(vec![
        ("s", Arc::new(LargeStringArray::from(vec![Some("x")])) as ArrayRef),
        ("n", Arc::new(Int32Array::from(vec![3]))),
    ]);
    let columns = one.schema();
    let loaded = ingest(&engine, "s", &columns, [Ok(one), Ok(two)].into_iter()).await.unwrap();
    assert_eq!((loaded.rows, loaded.batches, loaded.first, loaded.next), (3, 2, Some(0), Some(3)));
    let partition = engine.declared("s").await.unwrap().unwrap().partition();
    let read = engine.read(&partition, 0, 10, 10_000).await.unwrap();
    let rows: Vec<_> = read.records.iter().map(|r| r.payload.as_ref()).collect();
    let wanted = [r#"{"n":1,"s":"ü"}"#, r#"{"n":2,"s":null}"#, r#"{"n":3,"s":"x"}"#];
    assert_eq!(rows, wanted.map(str::as_bytes));
}

#[tokio::test(start_paused = true)]
async fn columns_are_checked_before_anything_is_loaded() {
    let engine = stream().await;
    let ints = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    for (columns, word) in [
        (vec![("s", Arc::new(LargeStringArray::from(vec!["x"])) as ArrayRef)], "`n` is missing"),
        (vec![("n", ints()), ("m", ints())], "`m` is not declared"),
        (vec![("n", ints()), ("s", ints())], "`s` has the type"),
    ] {
        let batch = batch(columns);
        let columns = batch.schema();
        let refused = ingest(&engine, "s", &columns, [Ok(batch)].into_iter()).await.unwrap_err();
        assert!(matches!(refused, IngestError::Columns { .. }), "{refused}");
        assert!(refused.to_string().contains(word), "{refused}");
    }
    let partition = engine.declared("s").await.unwrap().unwrap().partition();
    assert_eq!(engine.extent(&partition).await.unwrap().unwrap().tail, 0);
    let nothing = ingest(&engine, "no", &arrow_schema::Schema::empty(), std::iter::empty()).await;
    assert!(matches!(nothing, Err(IngestError::NotDeclared(_))));
}
