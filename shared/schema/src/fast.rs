//! The usual row, in one pass: columns in their order, texts without escapes, whole numbers of up to eighteen digits.
//!
//! It writes what [`Schema::write`](crate::Schema::write) would make of the row, or gives up. It never judges: a row that
//! it gives up on may be good, and whoever asks has it read with care, which also finds the words for what is wrong.

use crate::schema::{Column, Kind};

/// Digits of an integer that fits 64 bits whatever they are.
const SAFE_DIGITS: usize = 18;

/// Writes the row's canonical text; `None` if it is not of the usual form. The text must be UTF-8.
pub(crate) fn canonical(columns: &[Column], text: &str, out: &mut Vec<u8>) -> Option<()> {
    let mut at = Cursor { text, at: 0 };
    at.space();
    fields(columns, &mut at, out)?;
    at.space();
    (at.at == text.len()).then_some(())
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str) -> bool {
        let here =
            self.text.as_bytes().get(self.at..).is_some_and(|t| t.starts_with(word.as_bytes()));
        if here {
            self.at += word.len();
        }
        here
    }

    /// A string without escapes, quotes not included.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let rest = self.text.as_bytes().get(self.at..)?;
        let end = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20)?;
        if rest[end] != b'"' {
            return None;
        }
        let string = self.text.get(self.at..self.at + end)?;
        self.at += end + 1;
        Some(string)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    /// A number's text, and whether it is whole: written without fraction and exponent.
    fn number(&mut self) -> Option<(&'a str, bool)> {
        let start = self.at;
        let _ = self.take(b'-');
        let zero = self.peek() == Some(b'0');
        match self.digits() {
            0 => return None,
            1 => {}
            _ if zero => return None,
            _ => {}
        }
        let mut whole = true;
        if self.take(b'.').is_some() {
            whole = false;
            if self.digits() == 0 {
                return None;
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            whole = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return None;
            }
        }
        Some((self.text.get(start..self.at)?, whole))
    }
}

fn fields(columns: &[Column], at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    at.take(b'{')?;
    out.push(b'{');
    let mut next = 0;
    at.space();
    if at.take(b'}').is_none() {
        loop {
            at.space();
            let name = at.string()?;
            // What was left out on the way here is null, if it may be.
            while columns.get(next)?.name != name {
                null(&columns[next], next, out)?;
                next += 1;
            }
            begin(&columns[next], next, out);
            at.space();
            at.take(b':')?;
            at.space();
            value(&columns[next], at, out)?;
            next += 1;
            at.space();
            if at.take(b',').is_none() {
                at.take(b'}')?;
                break;
            }
        }
    }
    for (place, column) in columns.iter().enumerate().skip(next) {
        null(column, place, out)?;
    }
    out.push(b'}');
    Some(())
}

/// Writes a column's name. One that was read without escapes needs none; any other is given up on before it is written.
fn begin(column: &Column, place: usize, out: &mut Vec<u8>) {
    if place > 0 {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(column.name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn null(column: &Column, place: usize, out: &mut Vec<u8>) -> Option<()> {
    let plain = column.name.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\');
    (column.nullable && plain).then(|| {
        begin(column, place, out);
        out.extend_from_slice(b"null");
    })
}

fn value(column: &Column, at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    if column.nullable && at.word("null") {
        out.extend_from_slice(b"null");
        return Some(());
    }
    match &column.kind {
        Kind::Bool => {
            let word: &[u8] = if at.word("true") {
                b"true"
            } else if at.word("false") {
                b"false"
            } else {
                return None;
            };
            out.extend_from_slice(word);
        }
        Kind::Int64 | Kind::Int32 => {
            let (number, whole) = at.number()?;
            if !whole || number.len() > SAFE_DIGITS || number == "-0" {
                return None;
            }
            if column.kind == Kind::Int32 {
                number.parse::<i32>().ok()?;
            }
            out.extend_from_slice(number.as_bytes());
        }
        Kind::Float64 | Kind::Float32 => {
            let (number, whole) = at.number()?;
            // Short integers are exact in either.
            if whole && number.len() > 7 {
                return None;
            }
            let mut wide = number.parse::<f64>().ok()?;
            if column.kind == Kind::Float32 {
                wide = f64::from(wide as f32);
            }
            if !wide.is_finite() {
                return None;
            }
            serde_json::to_writer(&mut *out, &wide).ok()?;
        }
        Kind::Text => {
            let string = at.string()?;
            out.push(b'"');
            out.extend_from_slice(string.as_bytes());
            out.push(b'"');
        }
        Kind::Struct(columns) => fields(columns, at, out)?,
        Kind::List(item) => list(item, at, out)?,
        Kind::Binary { .. } | Kind::Map(_) => return None,
    }
    Some(())
}

fn list(item: &Column, at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    at.take(b'[')?;
    out.push(b'[');
    at.space();
    if at.take(b']').is_none() {
        loop {
            at.space();
            value(item, at, out)?;
            at.space();
            if at.take(b',').is_none() {
                at.take(b']')?;
                break;
            }
            out.push(b',');
        }
    }
    out.push(b']');
    Some(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::Schema;

    const SCHEMA: &str = r#"{"properties":{
        "n":{"type":"integer"},"i":{"type":["integer","null"],"format":"int32"},
        "d":{"type":["number","null"]},"f":{"type":["number","null"],"format":"float"},
        "b":{"type":["boolean","null"]},"s":{"type":["string","null"]},
        "st":{"type":["object","null"],"properties":{"x":{"type":"integer"},"y":{"type":["string","null"]}},"required":["x"]},
        "l":{"type":["array","null"],"items":{"type":["number","null"]}}},"required":["n"]}"#;

    const ROWS: [&str; 12] = [
        r#"{"n":1,"i":-2,"d":1.5,"f":1.1,"b":true,"s":"é\u2028","st":{"x":1,"y":"z"},"l":[1,2.5,null]}"#,
        r#"{"n":1,"i":-2,"d":2,"f":16777216,"b":false,"s":"é/","st":{"x":1},"l":[]}"#,
        r#" { "n" : 7 , "s" : "x" } "#,
        r#"{"s":"x","n":7}"#,
        r#"{"n":-0,"d":-0,"f":-0.0}"#,
        r#"{"n":999999999999999999,"d":1e300}"#,
        r#"{"n":9223372036854775807,"d":9007199254740993}"#,
        r#"{"n":1,"f":1e39}"#,
        r#"{"n":1,"i":2147483648}"#,
        r#"{"n":1,"n":2}"#,
        r#"{"n":1,"x":2}"#,
        r#"{"n":1,"s":"a"b"}"#,
    ];

    /// What one pass says is what care says: also of rows that are broken in every way.
    #[test]
    fn the_fast_way_is_the_careful_way() {
        let schema = Schema::compile(SCHEMA).unwrap();
        let careful = |row: &[u8]| schema.row(row).map(|r| schema.write(&r)).ok();
        let check = |row: &[u8]| {
            let Ok(text) = std::str::from_utf8(row) else { return 0 };
            let mut out = Vec::new();
            if super::canonical(schema.columns(), text, &mut out).is_none() {
                return 0;
            }
            assert_eq!(Some(String::from_utf8(out).unwrap()), careful(row), "{text}");
            1
        };
        let mut fast = 0;
        let mut chance = 1u64;
        for row in ROWS {
            fast += check(row.as_bytes());
            for _ in 0..20_000 {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                let mut broken = row.as_bytes().to_vec();
                let at = (chance >> 8) as usize % broken.len();
                match chance % 3 {
                    0 => {
                        broken[at] = b"{}[],:\"\\0123456789.-+eE ntfu"[(chance >> 40) as usize % 27]
                    }
                    1 => drop(broken.remove(at)),
                    _ => broken.insert(
                        at,
                        b"{}[],:\"\\0123456789.-+eE ntfu"[(chance >> 40) as usize % 27],
                    ),
                }
                fast += check(&broken);
            }
        }
        assert!(fast > 10_000, "{fast} rows went the fast way");
    }

    #[test]
    fn a_canonical_row_is_not_copied() {
        let schema = Schema::compile(SCHEMA).unwrap();
        let row = schema.canonical(&Bytes::from_static(ROWS[1].as_bytes())).unwrap();
        assert_eq!(schema.canonical(&row).unwrap().as_ptr(), row.as_ptr());
    }
}
