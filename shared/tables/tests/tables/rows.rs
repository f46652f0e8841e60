//! Rows of declared streams: checked against the schema, named by their column, and typed in the table.

use arrow_array::{
    Array,
    cast::AsArray,
    types::{Float32Type, Float64Type, Int32Type, Int64Type},
};
use tidewheel_schema::Schema;
use tidewheel_tables::Error;

use crate::fake::{START_US, World};

const SCHEMA: &str = r#"{"properties":{
    "n":{"type":"integer"},
    "i":{"type":["integer","null"],"format":"int32"},
    "d":{"type":["number","null"]},
    "f":{"type":["number","null"],"format":"float"},
    "b":{"type":["boolean","null"]},
    "s":{"type":["string","null"]},
    "hex":{"type":["string","null"],"contentEncoding":"base16"},
    "fix":{"type":["string","null"],"contentEncoding":"base64","format":"bytes4"},
    "st":{"type":["object","null"],"properties":{"x":{"type":"integer"},"y":{"type":["string","null"]}},"required":["x"]},
    "m":{"type":["object","null"],"additionalProperties":{"type":"integer"}},
    "l":{"type":["array","null"],"items":{"type":["string","null"]}},
    "ll":{"type":["array","null"],"items":{"type":"object","properties":{"k":{"type":"array","items":{"type":"number"}}},"required":["k"]}}
},"required":["n"]}"#;

fn schema() -> Schema {
    Schema::compile(SCHEMA).unwrap()
}

#[test]
fn a_row_is_written_back_in_its_columns_types_and_order() {
    let schema = schema();
    let row = schema
        .row(br#"{"s":"\u00fc","n":-9223372036854775808,"d":2,"f":1.1,"hex":"AbCd","st":{"y":null,"x":1},
                 "m":{"b":1,"a":2,"b":3},"fix":"AAECAw==","l":["x",null],"b":true,"ll":[{"k":[1,2.5]}]}"#)
        .unwrap();
    assert_eq!(
        schema.write(&row),
        concat!(
            r#"{"n":-9223372036854775808,"i":null,"d":2.0,"f":1.100000023841858,"b":true,"s":"ü","hex":"abcd","#,
            r#""fix":"AAECAw==","st":{"x":1,"y":null},"m":{"b":3,"a":2},"l":["x",null],"ll":[{"k":[1.0,2.5]}]}"#
        )
    );
    let again = schema.row(schema.write(&row).as_bytes()).unwrap();
    assert_eq!(again, row, "what is written reads as the same row");
}

#[test]
fn a_row_that_does_not_fit_names_its_column() {
    let schema = schema();
    for (row, column, word) in [
        (r#"{}"#, Some("n"), "missing"),
        (r#"{"n":null}"#, Some("n"), "null"),
        (r#"{"n":1.0}"#, Some("n"), "integer"),
        (r#"{"n":1e2}"#, Some("n"), "integer"),
        (r#"{"n":true}"#, Some("n"), "boolean"),
        (r#"{"n":"1"}"#, Some("n"), "string"),
        (r#"{"n":9223372036854775808}"#, Some("n"), "int64"),
        (r#"{"n":1,"i":2147483648}"#, Some("i"), "int32"),
        (r#"{"n":1,"d":9007199254740993}"#, Some("d"), "exact"),
        (r#"{"n":1,"d":1e400}"#, Some("d"), "range"),
        (r#"{"n":1,"d":true}"#, Some("d"), "number"),
        (r#"{"n":1,"f":16777217}"#, Some("f"), "exact"),
        (r#"{"n":1,"f":3.5e38}"#, Some("f"), "float"),
        (r#"{"n":1,"b":1}"#, Some("b"), "boolean"),
        (r#"{"n":1,"s":1}"#, Some("s"), "string"),
        (r#"{"n":1,"s":"\ud800"}"#, Some("s"), "read"),
        (r#"{"n":1,"hex":"abc"}"#, Some("hex"), "base16"),
        (r#"{"n":1,"hex":"zz"}"#, Some("hex"), "base16"),
        (r#"{"n":1,"fix":"AAEC"}"#, Some("fix"), "4 exactly"),
        (r#"{"n":1,"fix":"AAECAw"}"#, Some("fix"), "base64"),
        (r#"{"n":1,"st":{"y":"a"}}"#, Some("st.x"), "missing"),
        (r#"{"n":1,"st":{"x":1,"z":2}}"#, Some("st.z"), "no such field"),
        (r#"{"n":1,"st":[]}"#, Some("st"), "object"),
        (r#"{"n":1,"m":{"a":null}}"#, Some("m[\"a\"]"), "null"),
        (r#"{"n":1,"m":[["a",1]]}"#, Some("m"), "object"),
        (r#"{"n":1,"l":["a",2]}"#, Some("l[1]"), "string"),
        (r#"{"n":1,"ll":[{"k":[1]},{"k":["x"]}]}"#, Some("ll[1].k[0]"), "number"),
        (r#"{"n":1,"what":2}"#, Some("what"), "no such column"),
        (r#"{"n":1,"litelink_offset":2}"#, Some("litelink_offset"), "fills it in"),
        (r#"{"n":1,"streamcast_ts":2}"#, Some("streamcast_ts"), "fills it in"),
        (r#"[1]"#, None, "array"),
        (r#"{"n":1"#, None, "JSON"),
        (r#"{"n":NaN}"#, None, "JSON"),
    ] {
        let error = schema.row(row.as_bytes()).expect_err(row);
        assert_eq!(error.column.as_deref(), column, "{row}");
        assert!(error.reason.contains(word), "{row}: {}", error.reason);
        if let Some(column) = column {
            assert!(error.to_string().contains(column), "{error}");
        }
    }
    assert!(schema.row(b"{\"n\":1,\"s\":\"\xff\"}").unwrap_err().reason.contains("UTF-8"));
}

#[test]
fn deep_nesting_neither_fits_nor_hurts() {
    let deep = format!(r#"{{"n":1,"s":{}1{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(schema().row(deep.as_bytes()).unwrap_err().column.as_deref(), Some("s"));
}

#[tokio::test(start_paused = true)]
async fn a_declared_stream_publishes_its_columns_and_nothing_else() {
    let world = World::new();
    let tables = world.tables();
    tables.declare("s", SCHEMA).await.unwrap();
    let rows = [
        r#"{"n":1,"i":7,"d":2,"f":1.5,"b":false,"s":"x","hex":"00ff","fix":"AAECAw==","st":{"x":5},"m":{"k":9},"l":["q",null],"ll":[{"k":[]},{"k":[1,2]}]}"#,
        r#"{"n":2}"#,
        r#"{"n":3,"st":{"x":6,"y":"why"},"m":{},"l":[],"ll":[]}"#,
    ];
    world.streams.push("s", "Default", rows.map(str::to_owned));
    tables.seal("s").await.unwrap();
    world.streams.push("s", "Default", [r#"{"n":4}"#.to_owned()]);
    tables.seal("s").await.unwrap();

    let scan = tables.scan("s").await.unwrap();
    let names: Vec<_> =
        scan.batches[0].schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(
        names,
        [
            "litelink_offset",
            "n",
            "i",
            "d",
            "f",
            "b",
            "s",
            "hex",
            "fix",
            "st",
            "m",
            "l",
            "ll",
            "streamcast_ts"
        ]
    );
    let longs = |name: &str| -> Vec<i64> {
        let batches = scan.batches.iter();
        batches
            .flat_map(|b| {
                b.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec()
            })
            .collect()
    };
    assert_eq!(longs("litelink_offset"), [1, 2, 3, 4], "readers count from 1");
    assert_eq!(longs("n"), [1, 2, 3, 4]);
    assert_eq!(longs("streamcast_ts"), [0, 1, 2, 3].map(|n| START_US + n));

    let batch = &scan.batches[0];
    let column = |name: &str| batch.column_by_name(name).unwrap();
    assert_eq!(column("i").as_primitive::<Int32Type>().value(0), 7);
    assert_eq!(column("d").as_primitive::<Float64Type>().value(0), 2.0);
    assert_eq!(column("f").as_primitive::<Float32Type>().value(0), 1.5);
    assert_eq!(column("hex").as_binary::<i64>().value(0), [0, 255]);
    assert_eq!(column("fix").as_fixed_size_binary().value(0), [0, 1, 2, 3]);
    let st = column("st").as_struct();
    assert_eq!((st.is_null(0), st.is_null(1), st.is_null(2)), (false, true, false));
    assert_eq!(st.column_by_name("x").unwrap().as_primitive::<Int64Type>().value(2), 6);
    assert_eq!(st.column_by_name("y").unwrap().as_string::<i32>().value(2), "why");
    let m = column("m").as_map();
    assert_eq!((m.value_length(0), m.is_null(1), m.value_length(2)), (1, true, 0));
    let ll = column("ll").as_list::<i32>();
    assert_eq!((ll.value_length(0), ll.is_null(1), ll.is_null(2)), (2, true, false));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_slipped_in_stops_its_stream_there_and_says_so() {
    let world = World::new();
    let tables = world.tables();
    tables
        .declare("s", r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#)
        .await
        .unwrap();
    world.streams.push(
        "s",
        "Default",
        [r#"{"n":1}"#, r#"{"n":"x"}"#, r#"{"n":3}"#].map(str::to_owned),
    );
    for rows in [1, 0] {
        let sealed = tables.seal("s").await.unwrap();
        assert_eq!(sealed.rows, rows, "what is below it is published");
        let unfit = sealed.unfit.unwrap();
        assert_eq!((unfit.offset, unfit.partition.as_str()), (1, "Default"));
        let text = unfit.to_string();
        assert!(text.contains("offset 1") && text.contains("column `n`"), "{text}");
    }
    assert_eq!(tables.freshness("s").await.unwrap().behind, 2);
}

#[tokio::test(start_paused = true)]
async fn a_schema_is_declared_once_and_in_time() {
    let world = World::new();
    let tables = world.tables();
    let (one, other) = (
        r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#,
        r#"{"properties":{"n":{"type":"string"}},"required":["n"]}"#,
    );
    tables.declare("s", one).await.unwrap();
    tables.declare("s", r#"{"type":"object","properties":{"n":{"type":"integer","format":"int64"}},"required":["n"]}"#)
        .await
        .unwrap();
    assert!(matches!(tables.declare("s", other).await, Err(Error::SchemaDiffers(_))));
    assert!(matches!(tables.declare("s", "{}").await, Err(Error::Schema(_))));
    // Another process knows it too, large ones included.
    let wide: Vec<_> =
        (0..300).map(|i| format!(r#""c{i}":{{"type":["string","null"]}}"#)).collect();
    let wide = format!(r#"{{"properties":{{{}}}}}"#, wide.join(","));
    tables.declare("wide", &wide).await.unwrap();
    assert_eq!(world.tables().schema("wide").await.unwrap().unwrap().columns().len(), 300);
    assert_eq!(world.tables().schema("s").await.unwrap().unwrap().columns().len(), 1);
    // A table without a schema keeps its columns.
    world.streams.push("plain", "p", ["1".to_owned()]);
    assert_eq!(tables.schema("plain").await.unwrap(), None);
    tables.seal("plain").await.unwrap();
    assert!(matches!(tables.declare("plain", one).await, Err(Error::TableExists(_))));
}
