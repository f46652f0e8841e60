"""The whole stack as a child process: start it, find where it listens, end it politely or not."""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

# A debug build on two busy cores needs a moment to open its data folder.
START_SECONDS = 60
STOP_SECONDS = 30
LISTENING = re.compile(r"^listening on (http://(\S+):(\d+))\s*$")


class StackFailed(Exception):
    """The server ended, or said nothing, before it listened. Carries what it wrote."""

    def __init__(self, message, status, log):
        super().__init__(f"{message}\n{log}")
        self.status = status
        self.log = log


class Stack:
    """One `tidewheel serve` on one data folder. The port is picked once and kept across restarts.

    With `store` (see shared_store.py) it serves the deployed store, and the folder's name is only that of its log.
    """

    def __init__(self, binary, data, *, seal_every=1, environment=None, store=None):
        self.binary = str(binary)
        self.data = Path(data)
        self.seal_every = seal_every
        self.store = store
        self.environment = environment or {}
        # Called in the child before it becomes the server: limits, another user.
        self.before_exec = None
        self.port = 0
        self.url = None
        self.process = None
        self.lines = []
        self.log = self.data.parent / f"{self.data.name}.log"

    @property
    def socket_url(self):
        return self.url.replace("http://", "ws://", 1)

    def start(self):
        """Returns once the server listens; raises StackFailed when it does not."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        command = [self.binary, "serve", "--listen", f"127.0.0.1:{self.port}"]
        if self.store is None:
            command += ["--data", str(self.data)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
        store = self.store.environment if self.store else {}
        environment = {**inherited, "TIDEWHEEL_SEAL_EVERY": str(self.seal_every), **store, **self.environment}
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=self.before_exec,
            )
        heard = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process.stdout, heard), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise StackFailed(f"nothing listened within {START_SECONDS} s", None, self.said()) from None
            if line is None:
                status = self.process.wait()
                raise StackFailed(f"the server ended with status {status} before it listened", status, self.said())
            found = LISTENING.match(line)
            if found:
                self.url, self.port = found.group(1), int(found.group(3))
                return self

    def _listen(self, stream, heard):
        for line in stream:
            self.lines.append(line)
            heard.put(line)
        heard.put(None)

    def said(self):
        """Everything the server wrote so far, standard output first."""
        return "".join(self.lines) + (self.log.read_text(errors="replace") if self.log.exists() else "")

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL: no handler runs, nothing is flushed."""
        if self.running():
            self.process.kill()
        return self.process.wait() if self.process else None

    def terminate(self):
        """SIGTERM, and the exit status; SIGKILL and None when it does not end in time."""
        if self.process is None:
            return None
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.terminate()
