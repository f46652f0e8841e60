//! CSV with a header: each record becomes an object of the header's names, in its order. Values stay text unless the route
//! says that a column holds numbers; an empty number is `null`.

use bytes::Bytes;
use csv::{ByteRecord, Reader, ReaderBuilder};

use crate::{
    object::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, Chunks, ObjectError, Parts, RECORD_BYTES, Row, Stop, Text,
    },
    routes::Route,
    source::Position,
};

/// Bytes of a header: it travels with a position, and a message has 256 KB.
const HEADER_BYTES: usize = 64 * 1024;

/// Reads records from a position on.
pub(crate) fn read(
    parts: Parts,
    mut position: Position,
    route: &Route,
    chunks: &Chunks,
) -> Result<(), Stop> {
    let is_tabbed = parts.key().to_ascii_lowercase().ends_with(".tsv");
    let delimiter = route.delimiter.unwrap_or(if is_tabbed { b'\t' } else { b',' });
    let start = position.at;
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        // Counted here, to say what is wrong with the record and go on with the next.
        .flexible(true)
        .from_reader(Text::new(parts, start));
    let mut record = ByteRecord::new();
    if position.header.is_empty() {
        if !next(&mut reader, &mut record)? {
            return Ok(());
        }
        position.header = header(&record)?;
        position.at = reader.position().byte();
    }
    let names: Vec<String> = position.header.iter().map(|n| format!("{}:", json(n))).collect();
    let is_number: Vec<bool> =
        position.header.iter().map(|name| route.numbers.contains(name)).collect();
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while next(&mut reader, &mut record)? {
        bytes += record.as_slice().len();
        rows.push(row(&position.header, &names, &is_number, &record, delimiter));
        position.row += 1;
        position.at = start + reader.position().byte();
        if rows.len() >= CHUNK_ROWS || bytes >= CHUNK_BYTES {
            chunks.send(Chunk { rows: std::mem::take(&mut rows), after: position.clone() })?;
            bytes = 0;
        }
    }
    if !rows.is_empty() {
        chunks.send(Chunk { rows, after: position })?;
    }
    Ok(())
}

fn next(reader: &mut Reader<Text>, record: &mut ByteRecord) -> Result<bool, ObjectError> {
    reader.get_mut().bound(RECORD_BYTES);
    let read = reader.read_byte_record(record);
    read.map_err(|e| {
        let line = reader.position().line();
        reader.get_ref().error(|| format!("line {line}: {e}; is a quote not closed?"))
    })
}

fn header(record: &ByteRecord) -> Result<Vec<String>, ObjectError> {
    let unreadable = |why: String| Err(ObjectError::Unreadable(format!("the header {why}")));
    if record.as_slice().len() > HEADER_BYTES {
        return unreadable(format!("is longer than {HEADER_BYTES} bytes"));
    }
    let mut names: Vec<String> = Vec::with_capacity(record.len());
    for (at, field) in record.iter().enumerate() {
        // Spreadsheets put a byte order mark before the first name.
        let field =
            if at == 0 { field.strip_prefix(b"\xef\xbb\xbf").unwrap_or(field) } else { field };
        match std::str::from_utf8(field) {
            Err(_) => return unreadable("is not UTF-8".to_owned()),
            Ok("") => return unreadable(format!("has no name for column {}", at + 1)),
            Ok(name) if names.iter().any(|n| n == name) => {
                return unreadable(format!("names column `{name}` twice"));
            }
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

fn row(
    header: &[String],
    names: &[String],
    is_number: &[bool],
    record: &ByteRecord,
    delimiter: u8,
) -> Row {
    let bad = |why: String| {
        let fields: Vec<&[u8]> = record.iter().collect();
        Row::Bad { why, content: fields.join(&[delimiter][..]).into() }
    };
    if record.len() != names.len() {
        return bad(format!(
            "the record has {} fields and the header {}",
            record.len(),
            names.len()
        ));
    }
    let mut out = String::with_capacity(record.as_slice().len() + 32 * names.len());
    for (at, field) in record.iter().enumerate() {
        let Ok(text) = std::str::from_utf8(field) else {
            return bad(format!("column `{}` is not UTF-8", header[at]));
        };
        out.push(if at == 0 { '{' } else { ',' });
        out.push_str(&names[at]);
        if !is_number[at] {
            out.push_str(&json(text));
            continue;
        }
        match text.trim() {
            "" => out.push_str("null"),
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => {
                out.push_str(number);
            }
            other => {
                let shown: String = other.chars().take(64).collect();
                return bad(format!("column `{}`: `{shown}` is no number", header[at]));
            }
        }
    }
    out.push('}');
    Row::Good(Bytes::from(out))
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::{all, good};

    #[tokio::test]
    async fn records_become_objects_of_the_headers_names_in_its_order() {
        let text = "\u{feff}zip,name\r\n007,\"Ann, \"\"A\"\"\"\r\n\"1\n2\",é\n";
        let (rows, error) = all("a.csv", "", text.to_owned()).await;
        assert_eq!(error, None);
        assert_eq!(
            rows,
            [good(r#"{"zip":"007","name":"Ann, \"A\""}"#), good(r#"{"zip":"1\n2","name":"é"}"#)]
        );
    }

    #[tokio::test]
    async fn numbers_are_numbers_where_the_route_says_so() {
        let rules = r#"[{"source": "*", "delimiter": ";", "numbers": ["n"]}]"#;
        let (rows, _) = all("a.csv", rules, "n;t\n1.50;1\n;\nx;1\n-2e3;\n").await;
        assert_eq!(rows[0], good(r#"{"n":1.50,"t":"1"}"#));
        assert_eq!(rows[1], good(r#"{"n":null,"t":""}"#));
        assert!(
            matches!(&rows[2], Row::Bad { why, content } if why.contains("`n`: `x`") && content == "x;1")
        );
        assert_eq!(rows[3], good(r#"{"n":-2e3,"t":""}"#));
    }

    #[tokio::test]
    async fn a_record_of_another_length_costs_itself_only() {
        let (rows, error) = all("a.tsv", "", "a\tb\n1\n1\t2\n").await;
        assert_eq!(error, None);
        assert!(
            matches!(&rows[0], Row::Bad { why, .. } if why == "the record has 1 fields and the header 2")
        );
        assert_eq!(rows[1], good(r#"{"a":"1","b":"2"}"#));
    }

    #[tokio::test]
    async fn many_records_can_be_gone_on_from_any_chunk() {
        let mut text = "n,text\n".to_owned();
        (0..2500).for_each(|n| text.push_str(&format!("{n},\"line\n{n}\"\n")));
        let (rows, _) = all("a.csv", "", text).await;
        assert_eq!(rows.len(), 2500);
        assert_eq!(rows[2499], good(r#"{"n":"2499","text":"line\n2499"}"#));
    }

    #[tokio::test]
    async fn a_header_that_says_nothing_or_twice_the_same_is_refused() {
        for (text, why) in [("a,a\n1,2\n", "`a` twice"), ("a,\n1,2\n", "column 2")] {
            let (rows, error) = all("a.csv", "", text).await;
            assert!(rows.is_empty());
            assert!(
                matches!(&error, Some(ObjectError::Unreadable(w)) if w.contains(why)),
                "{error:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_quote_that_is_not_closed_ends_the_object_at_its_line() {
        let text = format!("a\n1\n\"{}", "x".repeat(RECORD_BYTES + 20_000_000));
        let (_, error) = all("a.csv", "", text).await;
        assert!(
            matches!(&error, Some(ObjectError::Unreadable(w)) if w.contains("quote")),
            "{error:?}"
        );
    }
}
