"""Follows one partition live over a WebSocket from its beginning, and compares every row with the source.

Where the connection ends (the server was killed), it asks again for the offset after the last row it had.
"""

import argparse
import asyncio
import json
from urllib.parse import quote

import websockets

from . import source
from .report import say

# On this protocol the first offset is 1; 0 means the beginning, whatever it is.
BEGINNING, FIRST_OFFSET = 0, 1
PAUSE_SECONDS = 0.2
SAY_EVERY = 500


def text_of(row):
    """Equal texts mean equal values in the same order of keys."""
    return json.dumps(row, separators=(",", ":"))


class Follower:
    """What has been seen so far, over any number of connections."""

    def __init__(self, expected):
        self.expected = [text_of(payload) for payload in expected]
        self.seen = 0
        self.last_ts = 0
        self.connections = 0
        self.fault = None

    def take(self, frame):
        offset, ts, row = json.loads(frame)
        if offset != FIRST_OFFSET + self.seen:
            self.fault = f"offset {offset} came where {FIRST_OFFSET + self.seen} was due"
        elif self.seen >= len(self.expected):
            self.fault = f"a row too many at offset {offset}: {text_of(row)}"
        elif text_of(row) != self.expected[self.seen]:
            self.fault = f"at offset {offset} came {text_of(row)}, the source has {self.expected[self.seen]}"
        elif ts < self.last_ts:
            self.fault = f"time went back at offset {offset}: {ts} after {self.last_ts}"
        self.seen += 1
        self.last_ts = ts

    @property
    def finished(self):
        return self.fault is not None or self.seen >= len(self.expected)

    async def read(self, url):
        self.connections += 1
        async with websockets.connect(url, max_size=None, proxy=None, close_timeout=2) as socket:
            greeting = json.loads(await socket.recv())
            if greeting.get("streamcast") not in (4, 5) or "end_offset" not in greeting:
                self.fault = f"not a greeting: {greeting}"
            say(connections=self.connections)
            while not self.finished:
                self.take(await socket.recv())
                if self.seen % SAY_EVERY == 0:
                    say(rows=self.seen)


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url", help="ws://host:port")
    arguments.add_argument("--partition", default="JFK")
    arguments.add_argument("--rows", type=int)
    options = arguments.parse_args()
    follower = Follower(source.events(source.flights(options.rows), options.partition))
    last_error = None
    while not follower.finished:
        offset = FIRST_OFFSET + follower.seen if follower.seen else BEGINNING
        try:
            await follower.read(
                f"{options.url}/{source.QUEUE}?partition={quote(options.partition)}&offset={offset}"
            )
        except (OSError, websockets.WebSocketException) as error:
            last_error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(PAUSE_SECONDS)
    say(
        finished=True,
        rows=follower.seen,
        connections=follower.connections,
        fault=follower.fault,
        last_error=last_error,
    )


if __name__ == "__main__":
    asyncio.run(main())
