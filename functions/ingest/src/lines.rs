//! JSON lines: a JSON value on each line, kept as it came. Empty lines are no rows.

use std::io::{BufRead, BufReader, Read};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::{
    object::{CHUNK_BYTES, CHUNK_ROWS, Chunk, Chunks, Parts, RECORD_BYTES, Row, Stop, Text},
    source::Position,
};

/// Reads lines from a position on.
pub(crate) fn read(parts: Parts, mut position: Position, chunks: &Chunks) -> Result<(), Stop> {
    let mut text = BufReader::new(Text::new(parts, position.at));
    let (mut rows, mut bytes) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        let read = text.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|e| text.get_ref().error(|| e.to_string()))?;
        if read == 0 {
            break;
        }
        position.at += read as u64;
        let is_whole = line.last() == Some(&b'\n');
        if !is_whole && read > RECORD_BYTES {
            position.at += skip_line(&mut text)?;
            let why = format!("the line is longer than {RECORD_BYTES} bytes");
            rows.push(Row::Bad { why, content: line.into() });
            position.row += 1;
        } else {
            let trimmed = line.trim_ascii();
            if trimmed.is_empty() {
                continue;
            }
            bytes += trimmed.len();
            rows.push(row(trimmed));
            position.row += 1;
        }
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

fn row(line: &[u8]) -> Row {
    let content = Bytes::copy_from_slice(line);
    let Ok(text) = std::str::from_utf8(line) else {
        return Row::Bad { why: "the line is not UTF-8".to_owned(), content };
    };
    match serde_json::from_str::<&RawValue>(text) {
        Ok(_) => Row::Good(content),
        Err(e) => Row::Bad { why: format!("the line is not JSON: {e}"), content },
    }
}

/// Reads to the end of a line that is too long, without keeping it.
fn skip_line(text: &mut BufReader<Text>) -> Result<u64, Stop> {
    let mut skipped = 0;
    loop {
        let found = text.fill_buf().map(|buffer| {
            let end = buffer.iter().position(|b| *b == b'\n');
            (end.map_or(buffer.len(), |end| end + 1), end.is_some())
        });
        let (bytes, is_end) = found.map_err(|e| text.get_ref().error(|| e.to_string()))?;
        text.consume(bytes);
        skipped += bytes as u64;
        if is_end || bytes == 0 {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::{all, good};

    #[tokio::test]
    async fn lines_are_rows_and_bad_ones_say_why() {
        let text = "{\"a\": 1.0}\r\n\n  [1]  \nnot json\n\"last\"";
        let (rows, error) = all("a.jsonl", "", text).await;
        assert_eq!(error, None);
        assert_eq!(rows.len(), 4);
        assert_eq!(
            (&rows[0], &rows[1], &rows[3]),
            (&good("{\"a\": 1.0}"), &good("[1]"), &good("\"last\""))
        );
        assert!(
            matches!(&rows[2], Row::Bad { why, content } if why.contains("not JSON") && content == "not json")
        );
    }

    #[tokio::test]
    async fn many_lines_come_in_chunks_that_can_be_gone_on_from() {
        let text: String = (0..3500).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        let (rows, _) = all("a.ndjson", "", text).await;
        assert_eq!(rows.len(), 3500);
        assert_eq!(rows[3499], good("{\"n\":3499}"));
    }

    #[tokio::test]
    async fn a_line_without_an_end_costs_itself_and_not_the_next() {
        let text = format!("\"{}\"\n2\n", "x".repeat(RECORD_BYTES + 9_000_000));
        let (rows, _) = all("a.jsonl", "", text).await;
        assert!(matches!(&rows[0], Row::Bad { why, .. } if why.contains("16777216")));
        assert_eq!(rows[1..], [good("2")]);
    }
}
