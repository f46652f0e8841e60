"""Emulators as child processes: start one, know where it listens and that it answers, stop it."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from .endpoints import CREDENTIALS, REGION, Endpoints
from .install import dynoxide, python

# Python on two busy cores needs a moment to import a whole cloud.
START_SECONDS = 60
STOP_SECONDS = 10
# Another process may take a port between our looking and the emulator's binding.
ATTEMPTS = 5
LOG_TAIL = 2000


class EmulatorFailed(Exception):
    """It ended, or did not answer in time. Carries the end of what it wrote."""


class Emulator:
    """A running emulator."""

    def __init__(self, name, process, url, log):
        self.name = name
        self.process = process
        self.url = url
        self.log = log

    def stop(self):
        """Ends it, and whatever it started."""
        for ask, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            # The group, because functions that it runs are children of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                break
        self.log.close()

    def tail(self):
        """The end of what it wrote."""
        return Path(self.log.name).read_text(errors="replace")[-LOG_TAIL:]


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _answers(url):
    """True if a server of HTTP answers there, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _start(name, command, *, health, environment):
    """Starts an emulator on a free port. `command` and `environment` get the port."""
    for _ in range(ATTEMPTS):
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        log = tempfile.NamedTemporaryFile("w", prefix=f"{name}-", suffix=".log")
        process = subprocess.Popen(
            [str(part) for part in command(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **CREDENTIALS, "AWS_DEFAULT_REGION": REGION, **environment(port)},
            start_new_session=True,
        )
        emulator = Emulator(name, process, url, log)
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if _answers(url + health):
                # What answers must be ours, not whoever took the port.
                if process.poll() is None:
                    return emulator
                break
            time.sleep(0.02)
        said, ended = emulator.tail(), process.poll() is not None
        emulator.stop()
        if not ended:
            break
    raise EmulatorFailed(f"{name} did not start: {' '.join(map(str, command(port)))}\n{said}")


def start_dynoxide():
    """DynamoDB, in memory."""
    binary = dynoxide()
    return _start(
        "dynoxide",
        lambda port: [binary, "serve", "--host", "127.0.0.1", "--port", port],
        health="/",
        environment=lambda port: {},
    )


def start_ministack(environment=None):
    """The whole stack, in memory. `environment` is added to its own and to that of the functions it runs."""
    interpreter = python()
    return _start(
        "ministack",
        lambda port: [interpreter, "-m", "ministack.app"],
        health="/_ministack/health",
        # Its own default is every interface.
        environment=lambda port: {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            # What the functions that it runs are told.
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            **(environment or {}),
        },
    )


@contextlib.contextmanager
def running(environment=None):
    """Both emulators, for as long as the block lasts."""
    with contextlib.ExitStack() as started:
        fast = start_dynoxide()
        started.callback(fast.stop)
        stack = start_ministack(environment)
        started.callback(stack.stop)
        yield Endpoints(dynamodb=fast.url, stack=stack.url)
