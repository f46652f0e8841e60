"""The managed gateways in front of functions: an HTTP API, a function URL, and a WebSocket API with its callbacks.

With the limits of the real ones: an integration ends at 30 seconds (29 for the WebSocket API), a body at 6 MB, a frame
at 32 KB and a message at 128 KB; a connection that is gone is 410; the gateway sends no close code of the function's.
"""

import asyncio
import base64
import itertools
import json
import re
import time
from urllib.parse import parse_qsl, urlsplit

import websockets
from aiohttp import web
from websockets.asyncio.server import serve

from .lambdas import PAYLOAD_BYTES, Throttled

FRAME_BYTES = 32 * 1024
MESSAGE_BYTES = 128 * 1024
HTTP_SECONDS = 30
SOCKET_SECONDS = 29
_TEXT = re.compile(r"^(text/.*|application/(json|javascript|xml|x-www-form-urlencoded|.*\+(json|xml)))\b", re.I)
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


def _decoded(path):
    """An HTTP API decodes every escape of a path except that of the percent sign."""

    def decode(found):
        parts = re.split(r"(%25)", found.group())
        return "".join(p if p == "%25" else bytes.fromhex(p.replace("%", "")).decode("utf-8", "replace") for p in parts)

    return _ESCAPES.sub(decode, path)


def _context(stage, **more):
    now = time.time()
    return {
        "accountId": "000000000000",
        "apiId": "double",
        "domainName": "127.0.0.1",
        "domainPrefix": "127",
        "stage": stage,
        "requestId": f"r{next(_numbers)}",
        "timeEpoch": int(now * 1000),
        **more,
    }


_numbers = itertools.count(1)


class HttpFront:
    """An HTTP API (`url=False`) or a function URL (`url=True`) in front of a function."""

    def __init__(self, function, *, stage="$default", url=False):
        self.function, self.stage, self.is_url = function, stage, url

    async def __aenter__(self):
        app = web.Application(client_max_size=10 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        prefix = "" if self.stage == "$default" else f"/{self.stage}"
        self.url = "http://127.0.0.1:{}{}".format(self._runner.addresses[0][1], prefix)
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def event(self, request):
        """The event that a request becomes."""
        path, _, query = request.raw_path.partition("?")
        body = await request.read()
        event = {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path if self.is_url else _decoded(path),
            "rawQueryString": query,
            "headers": {name.lower(): ",".join(request.headers.getall(name)) for name in request.headers},
            "requestContext": _context(
                self.stage,
                routeKey="$default",
                http={"method": request.method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1"},
            ),
            "isBase64Encoded": False,
        }
        if body:
            text = _TEXT.match(request.headers.get("content-type", ""))
            event["isBase64Encoded"] = text is None
            event["body"] = body.decode("utf-8", "replace") if text else base64.b64encode(body).decode()
        return event

    async def _handle(self, request):
        event = json.dumps(await self.event(request), ensure_ascii=False).encode()
        if len(event) > PAYLOAD_BYTES:
            return web.json_response({"message": "Request Too Long"}, status=413)
        try:
            invoked = asyncio.ensure_future(self.function.invoke(event))
            seconds = 900 if self.is_url else HTTP_SECONDS
            answer = await asyncio.wait_for(asyncio.shield(invoked), seconds)
        except Throttled:
            return web.json_response({"message": "Too Many Requests"}, status=429)
        except TimeoutError:
            return web.json_response({"message": "Service Unavailable"}, status=503)
        if answer.error is not None:
            return web.json_response({"message": "Internal Server Error"}, status=502 if self.is_url else 500)
        if answer.streamed:
            if not self.is_url:
                # An HTTP API does not understand what a streaming function says.
                return web.json_response({"message": "Internal Server Error"}, status=500)
            prelude, _, body = answer.payload.partition(b"\0" * 8)
            return _reply(json.loads(prelude), body)
        reply = json.loads(answer.payload)
        body = reply.get("body") or ""
        return _reply(reply, base64.b64decode(body) if reply.get("isBase64Encoded") else body.encode())


def _reply(reply, body):
    response = web.Response(status=reply.get("statusCode", 200), body=body)
    response.headers.popall("content-type", None)
    for name, value in (reply.get("headers") or {}).items():
        if name.lower() not in ("content-length", "transfer-encoding"):
            response.headers[name] = value
    for cookie in reply.get("cookies") or []:
        response.headers.add("set-cookie", cookie)
    return response


class SocketFront:
    """A WebSocket API: routes $connect, $default (with its route response) and $disconnect, and @connections."""

    def __init__(self, function, *, stage="live"):
        self.function, self.stage = function, stage
        self.connections = {}
        # What the next POSTs to @connections meet: "throttle" (the account), "slow" (the client's buffer is full),
        # "lose" (delivered, and the reply is lost), "error" (500), or None.
        self.faults = []
        # Every POST that was let through, in order: (connection, bytes).
        self.posts = []
        self.events = []

    async def __aenter__(self):
        # The size of a message is checked here and not by the library, which would answer with its own words.
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            0,
            process_request=self._connect,
            max_size=None,
            compression=None,
            ping_interval=None,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{port}/{self.stage}"
        app = web.Application(client_max_size=10 * 1024 * 1024)
        app.router.add_route("*", f"/{self.stage}/@connections/{{id}}", self._callback)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        # TIDEWHEEL_POSTS_ENDPOINT of the functions.
        self.posts_url = "http://127.0.0.1:{}/{}".format(self._runner.addresses[0][1], self.stage)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()
        await self._runner.cleanup()

    async def _invoke(self, connection, kind, route, **more):
        event = {
            "headers": {},
            "isBase64Encoded": False,
            **more.pop("top", {}),
            "requestContext": _context(
                self.stage,
                routeKey=route,
                eventType=kind,
                connectionId=connection,
                messageDirection="IN",
                connectedAt=int(time.time() * 1000),
                identity={"sourceIp": "127.0.0.1"},
                **more,
            ),
        }
        self.events.append(event)
        try:
            return await asyncio.wait_for(self.function.invoke(event), SOCKET_SECONDS)
        except (Throttled, TimeoutError):
            return None

    async def _connect(self, socket, request):
        parts = urlsplit(request.path)
        if parts.path.rstrip("/") != f"/{self.stage}":
            return socket.respond(403, "Forbidden\n")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        headers = {name: value for name, value in request.headers.raw_items()}
        connection = base64.urlsafe_b64encode(f"c{next(_numbers):010}".encode()).decode()
        top = {"headers": headers, "multiValueHeaders": {n: [v] for n, v in headers.items()}}
        if query:
            top["queryStringParameters"] = query
            top["multiValueQueryStringParameters"] = {n: [v] for n, v in query.items()}
        socket.connection_id = connection
        answer = await self._invoke(connection, "CONNECT", "$connect", top=top)
        if answer is None or answer.error is not None:
            return socket.respond(500, "Internal server error\n")
        status = json.loads(answer.payload).get("statusCode", 200)
        if not 200 <= status < 300:
            return socket.respond(status, json.dumps({"message": "Forbidden", "connectionId": connection}))
        self.connections[connection] = socket
        return None

    async def _handle(self, socket):
        connection = socket.connection_id
        code, reason = 1001, "Going away"
        try:
            while True:
                message = await self._message(socket)
                answer = await self._invoke(
                    connection, "MESSAGE", "$default", top={"body": message}, messageId=f"m{next(_numbers)}"
                )
                if answer is None or answer.error is not None:
                    said = {"message": "Internal server error", "connectionId": connection, "requestId": "double"}
                    await socket.send(json.dumps(said))
                    continue
                reply = json.loads(answer.payload) if answer.payload else {}
                if isinstance(reply, dict) and reply.get("body"):
                    await socket.send(reply["body"])
        except websockets.ConnectionClosed as closed:
            if closed.rcvd:
                code, reason = closed.rcvd.code, closed.rcvd.reason
        except _TooLarge:
            code, reason = 1009, "Message too big"
            self.connections.pop(connection, None)
            await socket.close(code, reason)
        finally:
            self.connections.pop(connection, None)
            # Best effort, as the real one says of it.
            await self._invoke(
                connection, "DISCONNECT", "$disconnect", disconnectStatusCode=code, disconnectReason=reason
            )

    async def _message(self, socket):
        parts, size = [], 0
        async for part in socket.recv_streaming(decode=False):
            size += len(part)
            if len(part) > FRAME_BYTES or size > MESSAGE_BYTES:
                raise _TooLarge
            parts.append(bytes(part))
        return b"".join(parts).decode("utf-8", "replace")

    async def _callback(self, request):
        connection = request.match_info["id"]
        body = await request.read()
        socket = self.connections.get(connection)
        if request.method == "POST":
            fault = self.faults.pop(0) if self.faults else None
            if fault == "throttle":
                return _failure(429, "ThrottlingException", "Rate exceeded")
            if fault == "slow":
                return _failure(429, "LimitExceededException", "Limit exceeded")
            if fault == "error":
                return _failure(500, "InternalServerErrorException", "Internal server error")
            if len(body) > MESSAGE_BYTES:
                return _failure(413, "PayloadTooLargeException", "Message too long")
            if socket is None:
                return _failure(410, "GoneException", "Gone")
            try:
                await socket.send(body.decode("utf-8", "replace"))
            except websockets.ConnectionClosed:
                return _failure(410, "GoneException", "Gone")
            self.posts.append((connection, body))
            if fault == "lose":
                request.transport.abort()
            return web.Response(status=200)
        if socket is None:
            return _failure(410, "GoneException", "Gone")
        if request.method == "DELETE":
            self.connections.pop(connection, None)
            await socket.close(1000, "")
            return web.Response(status=204)
        return web.json_response({"connectedAt": "2026-01-01T00:00:00Z", "identity": {"sourceIp": "127.0.0.1"}})


class _TooLarge(Exception):
    pass


def _failure(status, kind, message):
    return web.json_response({"message": message}, status=status, headers={"x-amzn-errortype": kind})
