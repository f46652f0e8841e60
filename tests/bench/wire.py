"""One keep-alive HTTP connection, spoken in bytes: a load generator must not spend its time on parsing."""

import asyncio

# A pop of a large batch is a long line for the reader.
READ_BYTES = 4 * 1024 * 1024


class Connection:
    """Requests go out as prepared bytes; an answer is its status and its body."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.reader = self.writer = None

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=READ_BYTES)
        return self

    def close(self):
        self.writer.close()

    async def send(self, request):
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            length = int(head[at + 17 : head.index(b"\r\n", at + 2)])
            return status, await self.reader.readexactly(length) if length else b""
        if b"\r\ntransfer-encoding: chunked" in head:
            return status, await self._chunks()
        return status, b""

    async def _chunks(self):
        body = b""
        while True:
            length = int(await self.reader.readuntil(b"\r\n"), 16)
            body += (await self.reader.readexactly(length + 2))[:-2]
            if length == 0:
                return body


def get(path):
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def post(path, body):
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
