"""Runs function binaries the way Lambda does: the runtime API, environments, deadlines, asynchronous invocations.

An environment is one process with a runtime API of its own. It serves one invocation at a time and is kept for the
next. What a process leaves undone when it dies is what the test is about, so nothing here tidies up behind it.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from dataclasses import dataclass, field

from aiohttp import web

# What Lambda carries in one synchronous invocation, each way.
PAYLOAD_BYTES = 6 * 1024 * 1024
STREAMED_BYTES = 200 * 1024 * 1024
# A debug build on busy cores needs a moment.
INIT_SECONDS = 60

_numbers = itertools.count(1)


@dataclass
class Answer:
    """What came of an invocation: `payload` as bytes, or `error` as the service words it."""

    payload: bytes = b""
    error: dict | None = None
    # Of a streaming function: the reply is a prelude, eight zero bytes, and the body.
    streamed: bool = False

    def json(self):
        assert self.error is None, self.error
        return json.loads(self.payload)


@dataclass
class _Invocation:
    payload: bytes
    answer: asyncio.Future
    deadline: float
    id: str = field(default_factory=lambda: f"00000000-0000-4000-8000-{next(_numbers):012x}")


class Environment:
    """One process of a function."""

    def __init__(self, function):
        self.function = function
        self.process = None
        self.current = None
        self.frozen = False
        self.init_ms = None
        self._events = asyncio.Queue()
        self._polled = asyncio.Event()
        self._failed = None

    async def start(self):
        app = web.Application(client_max_size=STREAMED_BYTES)
        prefix = "/2018-06-01/runtime"
        app.router.add_get(f"{prefix}/invocation/next", self._next)
        app.router.add_post(f"{prefix}/invocation/{{id}}/response", self._response)
        app.router.add_post(f"{prefix}/invocation/{{id}}/error", self._error)
        app.router.add_post(f"{prefix}/init/error", self._init_error)
        # A process that is gone waits for no event.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        environment = {
            "PATH": os.environ["PATH"],
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            **self.function.environment,
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": self.function.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_LOG_STREAM_NAME": "double",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{self.function.name}",
        }
        begun = time.perf_counter()
        with open(self.function.log, "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                str(self.function.binary), env=environment, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
            )
        polled = asyncio.ensure_future(self._polled.wait())
        ended = asyncio.ensure_future(self.process.wait())
        await asyncio.wait({polled, ended}, timeout=INIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        polled.cancel()
        if not self._polled.is_set():
            ended.cancel()
            await self.stop()
            said = self._failed or {"errorType": "Runtime.ExitError", "errorMessage": "ended or hung before it polled"}
            raise InitFailed(self.function.name, said, self.function.said())
        self.init_ms = (time.perf_counter() - begun) * 1000
        self._watch = asyncio.ensure_future(self._when_ended())
        ended.cancel()
        return self

    async def _when_ended(self):
        status = await self.process.wait()
        self.function.gone(self)
        if self.current and not self.current.answer.done():
            error = {"errorType": "Runtime.ExitError", "errorMessage": f"the process ended with status {status}"}
            self.current.answer.set_result(Answer(error=error))
        await self._runner.cleanup()

    async def invoke(self, payload):
        seconds = self.function.timeout
        now = asyncio.get_running_loop()
        self.current = _Invocation(payload, now.create_future(), time.time() + seconds)
        await self._events.put(self.current)
        try:
            return await asyncio.wait_for(asyncio.shield(self.current.answer), seconds + self.function.frozen_seconds)
        except TimeoutError:
            # The service ends an environment whose time is over. A frozen one is frozen, not over.
            self.kill()
            return Answer(error={"errorType": "Sandbox.Timedout", "errorMessage": f"Task timed out after {seconds} s"})
        finally:
            self.current = None

    def kill(self):
        """SIGKILL, now."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def freeze(self):
        """Stops the process where it is, as the service does between and even within invocations."""
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.frozen = False
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)

    async def stop(self):
        if self.process and self.process.returncode is None:
            self.thaw()
            self.kill()
            await self.process.wait()
        watch = getattr(self, "_watch", None)
        await (watch if watch else self._runner.cleanup())

    async def _next(self, _):
        self._polled.set()
        invocation = await self._events.get()
        headers = {
            "lambda-runtime-aws-request-id": invocation.id,
            "lambda-runtime-deadline-ms": str(int(invocation.deadline * 1000)),
            "lambda-runtime-invoked-function-arn": self.function.arn,
            "lambda-runtime-trace-id": "Root=1-00000000-000000000000000000000000",
        }
        return web.Response(body=invocation.payload, headers=headers, content_type="application/json")

    def _of(self, request):
        if self.current and self.current.id == request.match_info["id"]:
            return self.current
        return None

    async def _response(self, request):
        invocation = self._of(request)
        body = await request.read()
        if invocation is None or invocation.answer.done():
            return web.json_response({"errorType": "InvalidRequestID"}, status=400)
        streamed = request.headers.get("lambda-runtime-function-response-mode", "").lower() == "streaming"
        answer = Answer(body, streamed=streamed)
        if not streamed and len(body) > PAYLOAD_BYTES:
            answer = Answer(error={"errorType": "Function.ResponseSizeTooLarge"})
        invocation.answer.set_result(answer)
        return web.Response(status=202)

    async def _error(self, request):
        invocation = self._of(request)
        error = json.loads(await request.read() or b"{}")
        if invocation and not invocation.answer.done():
            invocation.answer.set_result(Answer(error=error))
        return web.Response(status=202)

    async def _init_error(self, request):
        self._failed = json.loads(await request.read() or b"{}")
        return web.Response(status=202)


class InitFailed(Exception):
    """A function's process did not come as far as asking for its first event."""


class Throttled(Exception):
    """All of a function's concurrency is in use."""


class Function:
    """A function: a binary, its variables, and the environments that run it."""

    def __init__(self, name, binary, environment, folder, *, timeout=30, concurrency=10, retries=2):
        self.name, self.binary, self.environment = name, binary, environment
        self.timeout, self.concurrency, self.retries = timeout, concurrency, retries
        # How long an invocation may be frozen beyond its timeout before the double gives it up.
        self.frozen_seconds = 0
        self.log = folder / f"{name}.log"
        self.arn = f"arn:aws:lambda:us-east-1:000000000000:function:{name}"
        self.environments = []
        self._idle = []
        # Asynchronous invocations that failed every time, as (payload, error).
        self.dead_letters = []
        # How often each asynchronous invocation is delivered although it succeeded: the service promises once or more.
        self.deliveries = 1
        self._background = set()

    def said(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def gone(self, environment):
        for among in (self.environments, self._idle):
            if environment in among:
                among.remove(environment)

    async def environment_for_next(self):
        """An idle environment, a new one if there is none."""
        if self._idle:
            return self._idle.pop()
        if len(self.environments) >= self.concurrency:
            raise Throttled(self.name)
        made = Environment(self)
        self.environments.append(made)
        try:
            return await made.start()
        except InitFailed:
            self.gone(made)
            raise

    async def invoke(self, event):
        """A synchronous invocation. `event` is bytes, or what becomes JSON."""
        payload = event if isinstance(event, bytes) else json.dumps(event).encode()
        try:
            environment = await self.environment_for_next()
        except InitFailed as failed:
            return Answer(error=failed.args[1])
        answer = await environment.invoke(payload)
        if environment in self.environments and environment.process.returncode is None:
            self._idle.append(environment)
        return answer

    def send(self, event):
        """An asynchronous invocation: accepted now, run soon, repeated when it fails."""
        task = asyncio.ensure_future(self._run(event))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run(self, event):
        for _ in range(self.deliveries):
            for _ in range(1 + self.retries):
                try:
                    answer = await self.invoke(event)
                except Throttled:
                    answer = Answer(error={"errorType": "TooManyRequestsException"})
                if answer.error is None:
                    break
            else:
                self.dead_letters.append((event, answer.error))

    async def settled(self):
        """Waits for all asynchronous invocations, and for those that they made."""
        while self._background:
            await asyncio.gather(*self._background)

    async def stop(self):
        for task in list(self._background):
            task.cancel()
        for environment in list(self.environments):
            await environment.stop()


class Lambdas:
    """The service: functions by name, and the endpoint that the SDK invokes them at."""

    def __init__(self):
        self.functions = {}

    def add(self, function):
        self.functions[function.name] = function
        return function

    async def __aenter__(self):
        app = web.Application(client_max_size=PAYLOAD_BYTES)
        app.router.add_post("/2015-03-31/functions/{name}/invocations", self._invoke)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://127.0.0.1:{}".format(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_):
        for function in self.functions.values():
            await function.stop()
        await self._runner.cleanup()

    async def _invoke(self, request):
        function = self.functions.get(request.match_info["name"].split(":")[-1])
        if function is None:
            return _failure(404, "ResourceNotFoundException", "Function not found")
        event = await request.read()
        if request.headers.get("x-amz-invocation-type") == "Event":
            function.send(event)
            return web.Response(status=202)
        try:
            answer = await function.invoke(event)
        except Throttled:
            return _failure(429, "TooManyRequestsException", "Rate Exceeded.")
        if answer.error is not None:
            return web.json_response(answer.error, headers={"x-amz-function-error": "Unhandled"})
        return web.Response(body=answer.payload, content_type="application/json")


def _failure(status, kind, message):
    return web.json_response({"message": message}, status=status, headers={"x-amzn-errortype": kind})
