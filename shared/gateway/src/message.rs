//! Text messages of a server as WebSocket frames: a header, the text, no mask.

use bytes::{BufMut, Bytes, BytesMut};

/// A text message that is not a fragment: final bit and opcode.
const TEXT: u8 = 0x81;

/// The largest header.
const HEADER_BYTES: usize = 10;

/// Writes the header of a text message of this many bytes.
pub(crate) fn header(bytes: usize, out: &mut BytesMut) {
    out.put_u8(TEXT);
    match bytes {
        0..126 => out.put_u8(bytes as u8),
        126..65_536 => {
            out.put_u8(126);
            out.put_u16(bytes as u16);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(bytes as u64);
        }
    }
}

/// Texts as messages, one after the other.
pub fn text_messages<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Bytes {
    let mut out = BytesMut::new();
    for text in texts {
        let text = text.as_ref();
        out.reserve(HEADER_BYTES + text.len());
        header(text.len(), &mut out);
        out.put_slice(text);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_shortest_form() {
        for (bytes, expected) in [
            (0usize, vec![0x81, 0]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (65_535, vec![0x81, 126, 255, 255]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = BytesMut::new();
            header(bytes, &mut out);
            assert_eq!(out, expected, "{bytes}");
        }
        assert_eq!(text_messages(["a", "bc"]).as_ref(), b"\x81\x01a\x81\x02bc");
    }
}
