"""Stands between a function and its store: counts the calls, and does harm at a chosen one.

The harm is what a network and a machine do: the caller dies before its call arrives or after it took effect, the
caller sleeps there for a while, the reply is lost, the store refuses because it is busy.
"""

import asyncio
import json
from dataclasses import dataclass

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

# Headers that belong to one connection and not to the request.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host", "expect"}

WRITES = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem"}


@dataclass
class Call:
    """One request to the store, as the proxy saw it."""

    operation: str
    number: int


@dataclass
class Fault:
    """At call `at` (the first is 1; of those whose operation is in `among`, if named) do `do`:

    - `kill-before`: the caller's process dies and the call never arrives;
    - `kill-after`: the call takes effect, the caller's process dies without hearing of it;
    - `freeze-before`, `freeze-after`: the caller's process is stopped there until somebody thaws it;
    - `lose`: the call takes effect and the connection breaks;
    - `throttle`, `conflict`: the store refuses, and nothing took effect.
    """

    at: int
    do: str
    among: frozenset | None = None
    times: int = 1


class Proxy:
    """A store with moments. `victim` is asked for the environment that is harmed."""

    def __init__(self, upstream, victim=lambda: None):
        self.upstream, self.victim = upstream.rstrip("/"), victim
        self.calls, self.faults = [], []
        # Set when a fault has happened.
        self.struck = asyncio.Event()
        # What frozen calls wait for.
        self.thawed = asyncio.Event()

    def arm(self, fault):
        """Counts from here, and does the fault when its call comes."""
        self.calls.clear()
        self.struck.clear()
        self.thawed.clear()
        self.faults = [fault]

    async def __aenter__(self):
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://127.0.0.1:{}".format(self._runner.addresses[0][1])
        self._session = ClientSession(
            timeout=ClientTimeout(total=60), auto_decompress=False, connector=TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, *_):
        self.thawed.set()
        await self._session.close()
        await self._runner.cleanup()

    def _due(self, operation):
        for fault in self.faults:
            if fault.among is not None and operation not in fault.among:
                continue
            number = sum(1 for c in self.calls if fault.among is None or c.operation in fault.among)
            if fault.at <= number < fault.at + fault.times:
                return fault.do
        return None

    async def _pass(self, request):
        body = await request.read()
        target = request.headers.get("x-amz-target", "")
        operation = target.rsplit(".", 1)[-1] if target else f"{request.method} object"
        self.calls.append(Call(operation, len(self.calls) + 1))
        harm = self._due(operation)
        victim = self.victim() if harm else None
        if harm == "kill-before":
            victim.kill()
            self.struck.set()
            return self._broken(request)
        if harm == "freeze-before":
            victim.freeze()
            self.struck.set()
            await self.thawed.wait()
        if harm in ("throttle", "conflict"):
            self.struck.set()
            return _refusal(harm, operation)
        status, headers, answer = await self._forward(request, body)
        if harm == "kill-after":
            victim.kill()
            self.struck.set()
            return self._broken(request)
        if harm == "lose":
            self.struck.set()
            return self._broken(request)
        if harm == "freeze-after":
            victim.freeze()
            self.struck.set()
            await self.thawed.wait()
        return web.Response(status=status, headers=headers, body=answer)

    async def _forward(self, request, body):
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        if "content-encoding" in request.headers:
            headers["content-encoding"] = request.headers["content-encoding"]
        url = self.upstream + request.raw_path
        async with self._session.request(request.method, _raw(url), headers=headers, data=body or None) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            return answer.status, kept, await answer.read()

    @staticmethod
    def _broken(request):
        """Ends the connection without an answer."""
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)


def _raw(url):
    from yarl import URL

    return URL(url, encoded=True)


def _refusal(harm, operation):
    prefix = "com.amazonaws.dynamodb.v20120810#"
    if harm == "throttle":
        kind, message = "ProvisionedThroughputExceededException", "The level of configured throughput was exceeded"
    elif operation == "TransactWriteItems":
        kind = "TransactionCanceledException"
        message = "Transaction cancelled, please refer cancellation reasons for specific reasons [TransactionConflict]"
        body = {"__type": prefix + kind, "Message": message, "CancellationReasons": [{"Code": "TransactionConflict"}]}
        return _json(body)
    else:
        kind, message = "TransactionConflictException", "Transaction is ongoing for the item"
    return _json({"__type": prefix + kind, "message": message})


def _json(body):
    return web.Response(status=400, body=json.dumps(body), headers={"content-type": "application/x-amz-json-1.0"})
