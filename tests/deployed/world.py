"""The functions behind the double: a table of their own, a proxy before it for each, and the fronts that callers see."""

import contextlib

import httpx
from double.gateway import HttpFront, SocketFront
from double.lambdas import Function, Lambdas
from double.proxy import Proxy

PREFIX = "tidewheel-"


class World:
    """Enter it with `async with`. `url` is the HTTP API, `stream_url` the function URL, `socket_url` the WebSocket API."""

    def __init__(self, binaries, endpoints, table, bucket, folder, *, timeout=30, environment=None):
        self.binaries, self.endpoints, self.folder = binaries, endpoints, folder
        self.table, self.bucket, self.timeout = table, bucket, timeout
        self.environment = environment or {}

    async def __aenter__(self):
        async with contextlib.AsyncExitStack() as entered:
            self.stores = {}
            self.lambdas = await entered.enter_async_context(Lambdas())
            # Known before the functions are, because they are told of it.
            self.sockets = await entered.enter_async_context(SocketFront(None))
            self.http = await self._function(entered, "http", self.timeout)
            self.streaming = await self._function(
                entered, "http", self.timeout, name="http-stream", TIDEWHEEL_RESPONSE="stream"
            )
            self.websocket = await self._function(entered, "websocket", 15)
            self.fanout = await self._function(entered, "fanout", 60, retries=1)
            self.ingest = await self._function(entered, "ingest", 300)
            self.sockets.function = self.websocket
            self.front = await entered.enter_async_context(HttpFront(self.http))
            self.function_url = await entered.enter_async_context(HttpFront(self.streaming, url=True))
            self.client = await entered.enter_async_context(
                httpx.AsyncClient(base_url=self.front.url, timeout=60, trust_env=False)
            )
            self.harmed = self.http
            self._entered = entered.pop_all()
        return self

    async def __aexit__(self, *_):
        await self._entered.aclose()

    @property
    def url(self):
        return self.front.url

    @property
    def stream_url(self):
        return self.function_url.url

    @property
    def socket_url(self):
        return self.sockets.url

    async def _function(self, entered, binary, timeout, *, name=None, retries=2, **more):
        store = await entered.enter_async_context(Proxy(self.endpoints.dynamodb))
        environment = {
            **self.endpoints.for_sdk(),
            "AWS_ENDPOINT_URL_DYNAMODB": store.url,
            "AWS_ENDPOINT_URL_LAMBDA": self.lambdas.url,
            "TIDEWHEEL_TABLE": self.table,
            "TIDEWHEEL_BUCKET": self.bucket,
            "TIDEWHEEL_DOORBELL": f"{PREFIX}fanout",
            "TIDEWHEEL_POSTS_ENDPOINT": self.sockets.posts_url,
            **self.environment,
            **more,
        }
        path = self.binaries / f"tidewheel-{binary}"
        made = Function(f"{PREFIX}{name or binary}", path, environment, self.folder, timeout=timeout, retries=retries)
        store.victim = lambda: _at_work(made)
        self.stores[made.name] = store
        return self.lambdas.add(made)

    @property
    def proxy(self):
        """The store as `harmed`, the HTTP function unless a test says another, sees it."""
        return self.stores[self.harmed.name]

    def victim(self):
        """The environment of `harmed` that has an invocation in hand."""
        return _at_work(self.harmed)

    async def warm(self):
        """Makes sure that a process is there, so that no call of its init is counted."""
        assert (await self.client.get("/health")).status_code == 200

    async def under(self, fault, request):
        """Does a request with the fault armed; answers its response and whether the fault happened."""
        await self.warm()
        self.proxy.arm(fault)
        response = await request()
        struck = self.proxy.struck.is_set()
        self.proxy.faults.clear()
        return response, struck

    async def push(self, queue, *payloads, partition="p", ids=None):
        items = [
            {"queue": queue, "partition": partition, "payload": payload, **({"transactionId": ids[at]} if ids else {})}
            for at, payload in enumerate(payloads)
        ]
        return await self.client.post("/api/v1/push", json={"items": items})

    async def pop(self, queue, group="g", **more):
        query = {"consumerGroup": group, "subscriptionMode": "all", "batch": 100, **more}
        response = await self.client.get(f"/api/v1/pop/queue/{queue}", params=query)
        return response.json()["messages"] if response.status_code == 200 else []

    async def ack(self, messages, group="g", status="completed"):
        acks = [
            {
                "transactionId": m["transactionId"],
                "partitionId": m["partitionId"],
                "leaseId": m["leaseId"],
                "status": status,
            }
            for m in messages
        ]
        return await self.client.post("/api/v1/ack/batch", json={"acknowledgments": acks, "consumerGroup": group})

    async def log(self, queue, partition="p"):
        """Everything in a partition: (offset, payload), read by offset and not by any group."""
        entry = {"queue": queue, "partition": partition, "offset": 0}
        response = await self.client.post("/api/v1/fetch", json={"entries": [entry]})
        entry = response.json()["entries"][0]
        return [(record["offset"], record["payload"]) for record in entry["records"]]


def _at_work(function):
    return next(e for e in function.environments if e.current is not None)


def done(response):
    """True if everything that was asked for is done: an answer of several parts may have failed in some."""
    if not response.is_success:
        return False
    parts = response.json() if response.content else []
    parts = parts.get("results", [parts]) if isinstance(parts, dict) else parts
    return all(part.get("success", True) and part.get("status") != "failed" for part in parts)
