//! WebSocket frames on a connection, from the server's side (RFC 6455).
//!
//! A library would take and give one message at a time. Here, rows that a client sent in one packet are read from one
//! buffer, and what goes out is bytes that were framed long ago, once for everybody: a server masks nothing, so a
//! [`Run`](tidewheel_gateway::Run) of hundreds of messages is one write, whoever gets it.
//!
//! Both halves keep their state in themselves: a future of theirs may be dropped at any moment without losing a byte.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use bytes::{Buf, Bytes, BytesMut};
use tidewheel_gateway::{Close, Inbound};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that a read has room for, at least.
const READ_BYTES: usize = 4 * 1024;

/// Bytes that a read has room for where messages are many.
const READ_MANY_BYTES: usize = 64 * 1024;

/// Pieces in one write.
const PIECES: usize = 32;

/// Bytes of a control frame's body.
const CONTROL_BYTES: usize = 125;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
const FINAL: u8 = 0x80;

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A whole message.
    Message(Inbound),
    /// It wants to know whether we are there.
    Ping(Bytes),
    /// It is there.
    Pong,
    /// It closes, with this code if it names one.
    Close(Option<u16>),
}

/// Why there is nothing more to read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The client broke the protocol, or sent more than is read: it is to be told so.
    Refused(Close),
    /// The connection is no more.
    Lost,
}

/// The reading half.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    io: R,
    buffer: BytesMut,
    /// Bytes of one message, at most.
    limit: usize,
    room: usize,
    /// The beginning of a message that comes in fragments.
    message: Option<(u8, Vec<u8>)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R, limit: usize) -> Self {
        Self { io, buffer: BytesMut::new(), limit, room: READ_BYTES, message: None }
    }

    /// From now on messages are many, and may be this large.
    pub(crate) fn expect_many(&mut self, limit: usize) {
        self.limit = limit;
        self.room = READ_MANY_BYTES;
    }

    /// What comes next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Incoming, ReadError> {
        loop {
            if let Some(incoming) = self.buffered()? {
                return Ok(incoming);
            }
            if self.buffer.is_empty() && self.buffer.capacity() > 4 * self.room {
                // What one large message needed is not kept.
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(self.room);
            match self.io.read_buf(&mut self.buffer).await {
                Ok(read) if read > 0 => {}
                _ => return Err(ReadError::Lost),
            }
        }
    }

    /// What comes next of a client that is not listened to any more; `None` once nothing more can be told apart.
    pub(crate) async fn drained(&mut self) -> Option<Incoming> {
        match self.next().await {
            Ok(incoming) => Some(incoming),
            Err(ReadError::Lost) => None,
            Err(ReadError::Refused(_)) => {
                // Whatever it is: it is only taken out of the way.
                let mut rest = [0; 8 * 1024];
                while self.io.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                None
            }
        }
    }

    /// What comes next, if it is here already.
    pub(crate) fn buffered(&mut self) -> Result<Option<Incoming>, ReadError> {
        while let Some(frame) = self.frame()? {
            if let Some(incoming) = self.whole(frame)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    /// Takes one frame out of the buffer: first byte and body, unmasked.
    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, ReadError> {
        let refuse = |why| Err(ReadError::Refused(Close::protocol_error(why)));
        let [first, second, rest @ ..] = self.buffer.as_ref() else { return Ok(None) };
        let (first, second) = (*first, *second);
        if first & 0x70 != 0 {
            return refuse("reserved bits are set");
        }
        if second & 0x80 == 0 {
            return refuse("a frame without a mask");
        }
        let (len, header) = match second & 0x7f {
            126 => match rest.first_chunk() {
                Some(len) => (u64::from(u16::from_be_bytes(*len)), 4),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(len) => (u64::from_be_bytes(*len), 10),
                None => return Ok(None),
            },
            len => (u64::from(len), 2),
        };
        if first & 0x8 != 0 && (first & FINAL == 0 || len > CONTROL_BYTES as u64) {
            return refuse("a control frame that is fragmented or too long");
        }
        let before = self.message.as_ref().map_or(0, |(_, body)| body.len());
        let size = len.saturating_add(before as u64);
        if size > self.limit as u64 {
            return Err(ReadError::Refused(Close::message_too_big(size, self.limit)));
        }
        // It fits in memory, because it is within the limit.
        let len = len as usize;
        let Some(masked) = self.buffer.get(header + 4..header + 4 + len) else {
            let missing = (header + 4 + len).saturating_sub(self.buffer.len());
            self.buffer.reserve(missing);
            return Ok(None);
        };
        let Some(mask) = self.buffer.get(header..).and_then(|b| b.first_chunk::<4>()) else {
            return Ok(None);
        };
        // Copied, so that a row which is kept does not keep the whole buffer.
        let body = unmasked(masked, *mask);
        self.buffer.advance(header + 4 + len);
        Ok(Some((first, body)))
    }

    /// What a frame means, unless its message goes on.
    fn whole(&mut self, (first, body): (u8, Vec<u8>)) -> Result<Option<Incoming>, ReadError> {
        let refuse = |why| Err(ReadError::Refused(Close::protocol_error(why)));
        let (kind, body) = match (first & 0xf, self.message.take()) {
            (PING, message) => {
                self.message = message;
                return Ok(Some(Incoming::Ping(body.into())));
            }
            (PONG, message) => {
                self.message = message;
                return Ok(Some(Incoming::Pong));
            }
            (CLOSE, _) => {
                let code = body.first_chunk().map(|code| u16::from_be_bytes(*code));
                return Ok(Some(Incoming::Close(code)));
            }
            (kind @ (TEXT | BINARY), None) => (kind, body),
            (CONTINUATION, Some((kind, mut message))) => {
                message.extend_from_slice(&body);
                (kind, message)
            }
            (TEXT | BINARY, Some(_)) => return refuse("a message within a message"),
            (CONTINUATION, None) => return refuse("a continuation of nothing"),
            _ => return refuse("an unknown opcode"),
        };
        if first & FINAL == 0 {
            self.message = Some((kind, body));
            return Ok(None);
        }
        if kind == BINARY {
            return Ok(Some(Incoming::Message(Inbound::Binary(body.into()))));
        }
        if std::str::from_utf8(&body).is_err() {
            return Err(ReadError::Refused(Close::not_text()));
        }
        Ok(Some(Incoming::Message(Inbound::Text(body.into()))))
    }
}

/// A copy of a frame's body without its mask.
fn unmasked(body: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut out = Vec::with_capacity(body.len());
    let mut chunks = body.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.first_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight));
        out.extend_from_slice(&(word ^ wide).to_ne_bytes());
    }
    out.extend(chunks.remainder().iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    out
}

/// The writing half.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    io: W,
    queue: VecDeque<Bytes>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(io: W) -> Self {
        Self { io, queue: VecDeque::new() }
    }

    /// Adds whole frames.
    pub(crate) fn push(&mut self, frames: Bytes) {
        if !frames.is_empty() {
            self.queue.push_back(frames);
        }
    }

    pub(crate) fn ping(&mut self) {
        self.push(Bytes::from_static(&[FINAL | PING, 0]));
    }

    /// Answers a ping.
    pub(crate) fn pong(&mut self, body: &[u8]) {
        self.control(PONG, &[body]);
    }

    /// Closes. Nothing may follow.
    pub(crate) fn close(&mut self, code: u16, reason: &str) {
        self.control(CLOSE, &[&code.to_be_bytes(), reason.as_bytes()]);
    }

    fn control(&mut self, opcode: u8, parts: &[&[u8]]) {
        let mut body = parts.concat();
        body.truncate(CONTROL_BYTES);
        self.push([&[FINAL | opcode, body.len() as u8], body.as_slice()].concat().into());
    }

    /// True if everything has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes everything. Dropping the future loses nothing.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut used = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(piece);
                used += 1;
            }
            let written = self.io.write_vectored(slices.get(..used).unwrap_or_default()).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.advance(written);
        }
        self.io.flush().await
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(front) = self.queue.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's frame.
    fn frame(first: u8, body: &[u8]) -> Vec<u8> {
        let mask = [7, 130, 0, 255];
        let mut out = vec![first];
        match body.len() {
            0..126 => out.push(0x80 | body.len() as u8),
            126..65_536 => {
                out.push(0x80 | 126);
                out.extend((body.len() as u16).to_be_bytes());
            }
            _ => {
                out.push(0x80 | 127);
                out.extend((body.len() as u64).to_be_bytes());
            }
        }
        out.extend(mask);
        out.extend(body.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
        out
    }

    fn text(body: &str) -> Incoming {
        Incoming::Message(Inbound::Text(Bytes::copy_from_slice(body.as_bytes())))
    }

    /// Everything that is read of these bytes, given at most `step` at a time.
    async fn read(bytes: &[u8], step: usize, limit: usize) -> (Vec<Incoming>, ReadError) {
        let (near, mut far) = tokio::io::duplex(step);
        let bytes = bytes.to_vec();
        tokio::spawn(async move { far.write_all(&bytes).await });
        let mut reader = Reader::new(near, limit);
        let mut found = Vec::new();
        loop {
            match reader.next().await {
                Ok(incoming) => found.push(incoming),
                Err(error) => return (found, error),
            }
        }
    }

    #[tokio::test]
    async fn messages_of_every_length_come_whole_however_they_are_cut() {
        let long = "ä".repeat(100);
        let longer = "x".repeat(70_000);
        let bytes = [
            frame(FINAL | TEXT, b"a"),
            frame(FINAL | TEXT, b""),
            frame(FINAL | TEXT, long.as_bytes()),
            frame(FINAL | TEXT, longer.as_bytes()),
            frame(FINAL | BINARY, &[0, 255]),
            frame(TEXT, "h\u{e9}".as_bytes().split_at(2).0),
            frame(FINAL | PING, b"there?"),
            frame(CONTINUATION, &"h\u{e9}".as_bytes()[2..]),
            frame(FINAL | PONG, b""),
            frame(FINAL | CONTINUATION, b"!"),
            frame(FINAL | CLOSE, &1000u16.to_be_bytes()),
        ]
        .concat();
        for step in [1, 7, 1 << 20] {
            let (found, end) = read(&bytes, step, 1 << 20).await;
            let expected = vec![
                text("a"),
                text(""),
                text(&long),
                text(&longer),
                Incoming::Message(Inbound::Binary(Bytes::from_static(&[0, 255]))),
                Incoming::Ping(Bytes::from_static(b"there?")),
                Incoming::Pong,
                text("h\u{e9}!"),
                Incoming::Close(Some(1000)),
            ];
            assert!(found == expected && end == ReadError::Lost, "step {step}");
        }
    }

    #[tokio::test]
    async fn what_breaks_the_protocol_is_refused_after_what_came_before() {
        let unmasked = vec![FINAL | TEXT, 1, b'a'];
        for (bytes, code) in [
            (unmasked, 1002),
            (frame(FINAL | 0x40 | TEXT, b"a"), 1002),
            (frame(FINAL | 0x3, b"a"), 1002),
            (frame(FINAL | CONTINUATION, b"a"), 1002),
            ([frame(TEXT, b"a"), frame(FINAL | TEXT, b"b")].concat(), 1002),
            (frame(PING, b"a"), 1002),
            (frame(FINAL | PING, &[0; 126]), 1002),
            (frame(FINAL | TEXT, b"\xff"), 1007),
            (frame(FINAL | TEXT, &[b'x'; 101]), 1009),
            ([frame(TEXT, &[b'x'; 60]), frame(FINAL | CONTINUATION, &[b'x'; 41])].concat(), 1009),
        ] {
            let bytes = [frame(FINAL | TEXT, b"before"), bytes].concat();
            let (found, end) = read(&bytes, 1 << 20, 100).await;
            assert_eq!(found, [text("before")], "{bytes:?}");
            let ReadError::Refused(close) = end else { panic!("{bytes:?}") };
            assert_eq!(close.code, code, "{bytes:?}");
        }
        // Exactly the limit is read; a length that nobody has is refused before anything is made room for.
        let (found, _) = read(&frame(FINAL | TEXT, &[b'x'; 100]), 1 << 20, 100).await;
        assert_eq!(found, [text(&"x".repeat(100))]);
        let endless = [&[FINAL | TEXT, 0xff][..], &[0xff; 12]].concat();
        let (_, end) = read(&endless, 1 << 20, 100).await;
        assert!(matches!(end, ReadError::Refused(close) if close.code == 1009));
    }

    #[tokio::test]
    async fn what_is_written_comes_out_in_order_whatever_the_room() {
        let (near, mut far) = tokio::io::duplex(5);
        let mut writer = Writer::new(near);
        let mut expected = Vec::new();
        for n in 0..100u8 {
            let piece = vec![n; usize::from(n)];
            expected.extend(&piece);
            writer.push(piece.into());
        }
        writer.ping();
        writer.pong(b"x");
        writer.close(4400, "why");
        expected.extend([0x89, 0, 0x8a, 1, b'x', 0x88, 5, 0x11, 0x30, b'w', b'h', b'y']);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.map(|_| all)
        });
        // Given up again and again, it loses nothing.
        while tokio::time::timeout(std::time::Duration::from_micros(50), writer.flush())
            .await
            .is_err()
        {}
        assert!(writer.is_empty());
        drop(writer);
        assert_eq!(reading.await.unwrap().unwrap(), expected);
    }
}
