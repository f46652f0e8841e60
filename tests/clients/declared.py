"""Declared streams for the published streamcast client: what they declare, and where they are."""

import contextlib
import json

import streamcast
from websockets.asyncio.client import connect as raw_connect

TRADES = {
    "type": "object",
    "properties": {
        "event_ts": {"type": "integer"},
        "price": {"type": "number"},
        "side": {"type": "integer", "format": "int32"},
        "ticker": {"type": "string"},
        "tag": {"type": ["string", "null"]},
    },
    "required": ["event_ts", "price", "side", "ticker"],
}
BINARY = {
    "type": "object",
    "properties": {
        "trace_id": {"type": "string", "contentEncoding": "base16", "format": "bytes16"},
        "payload": {"type": ["string", "null"], "contentEncoding": "base64"},
        "attrs": {"type": "object", "additionalProperties": {"type": "string"}},
        "res": {
            "type": "object",
            "properties": {"service": {"type": "string"}, "n": {"type": ["integer", "null"]}},
            "required": ["service"],
            "additionalProperties": False,
        },
        "f32": {"type": "number", "format": "float"},
    },
    "required": ["trace_id", "attrs", "res", "f32"],
}
STREAMS = {
    "trades": {"schema": TRADES, "sort_by": ["event_ts"]},
    "orders": {"schema": TRADES, "exactly_once": True},
    "slow": {"schema": TRADES, "limits": {"max_backlog": 16}},
    "short": {"schema": TRADES, "max_replay": 10},
    "small": {"schema": TRADES, "limits": {"max_message_bytes": 300}},
    "bin": {"schema": BINARY},
    "live": {"schema": TRADES, "log": False},
    "raw": {"log": False},
}


def declare(folder, streams=None):
    """A file for `tidewheel serve --declare`, and the environment that names it."""
    file = folder / "streams.json"
    file.write_text(json.dumps(STREAMS if streams is None else streams))
    return {"TIDEWHEEL_DECLARE": str(file)}


def trade(n, ticker="A", **others):
    return {"event_ts": n, "price": n + 0.5, "side": n % 2, "ticker": ticker, "tag": None, **others}


def at(stack, path):
    return f"{stack.socket_url}/{path}"


async def end_offset(stack, stream):
    async with streamcast.connect(at(stack, stream)) as subscription:
        return subscription.info.end_offset


@contextlib.asynccontextmanager
async def raw(stack, path):
    """A socket below the client's library: greeting, and the connection."""
    async with raw_connect(at(stack, path), compression=None, proxy=None, max_size=None, close_timeout=1) as socket:
        yield json.loads(await socket.recv()), socket


async def ask(socket, message):
    await socket.send(message if isinstance(message, str) else json.dumps(message))
    return json.loads(await socket.recv())
