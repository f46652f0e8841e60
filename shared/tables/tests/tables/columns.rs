//! What declared columns are in Arrow, by example.

use arrow_schema::{DataType, Field};
use tidewheel_schema::Schema;
use tidewheel_tables::{ENCODING, arrow_fields};

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

#[test]
fn columns_map_to_arrow_in_declared_order() {
    let fields = arrow_fields(&Schema::compile(FULL).unwrap());
    let names: Vec<_> = fields.iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["z", "b", "c", "d", "e", "f", "g", "h", "i"]);
    let types: Vec<_> = fields.iter().take(6).map(|f| f.data_type().clone()).collect();
    assert_eq!(
        types,
        [
            DataType::Int64,
            DataType::Int32,
            DataType::Float32,
            DataType::Float64,
            DataType::Binary,
            DataType::FixedSizeBinary(4)
        ]
    );
    let nullable: Vec<_> = fields.iter().map(|f| f.is_nullable()).collect();
    assert_eq!(nullable, [false, true, false, true, false, true, false, true, false]);
    assert_eq!(fields[4].metadata()[ENCODING], "base16");
    assert_eq!(fields[5].metadata()[ENCODING], "base64");
    assert_eq!(
        fields[6].data_type(),
        &DataType::Struct(
            vec![Field::new("x", DataType::Boolean, false), Field::new("a", DataType::Utf8, true)]
                .into()
        )
    );
    let DataType::Map(entries, false) = fields[7].data_type() else { panic!() };
    let DataType::Struct(pair) = entries.data_type() else { panic!() };
    assert_eq!(pair[1].as_ref(), &Field::new("value", DataType::Int64, true));
    let DataType::List(item) = fields[8].data_type() else { panic!() };
    assert!(matches!(item.data_type(), DataType::Map(..)) && !item.is_nullable());
}
