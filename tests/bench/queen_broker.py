"""A real Queen broker to measure beside: crate `queen-engine` over PostgreSQL, started on free ports and fresh folders.

Installed when it is asked for: the broker by `cargo install` from the crate registry, once, under cargo's target folder
(some minutes of both cores); PostgreSQL is the machine's own, found by its programs. Its durability is that of its
defaults, which is also ours: an answer comes after the sync (`fsync` and `synchronous_commit` are on).
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

CRATE, VERSION = "queen-engine", "1.3.0"
POSTGRES_USER = "postgres"

# What the broker is built with. A release build as a registry's users make it, but without link-time optimisation,
# which takes long and gains little; its own documentation counts it out as well.
BUILD = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
START_SECONDS = 60


def installed(folder):
    """The broker's program, built if it is not there."""
    program = folder / "out" / "bin" / "queen"
    if not program.exists():
        print(f"building {CRATE} {VERSION}: some minutes", flush=True)
        environment = {**os.environ, **BUILD, "CARGO_TARGET_DIR": str(folder / "target")}
        command = [
            "cargo",
            "install",
            CRATE,
            "--version",
            f"={VERSION}",
            "--locked",
            "--root",
            str(folder / "out"),
        ]
        # Its published lock file may be left out of the package: then the newest that fit are taken.
        done = subprocess.run(command, env=environment)
        if done.returncode:
            command.remove("--locked")
            subprocess.run(command, env=environment, check=True)
    return program


def postgres_programs():
    """The folder with PostgreSQL's programs: the newest under Debian's place, else where the path leads."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    raise SystemExit(
        "a Queen broker needs PostgreSQL: apt-get install postgresql, or put its programs on the path"
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class QueenBroker:
    """PostgreSQL and a broker over it, as children, in a folder of their own."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.programs = postgres_programs()
        self.postgres = self.broker = None
        self.url = None

    def _as_postgres(self, *command, **more):
        """PostgreSQL refuses to run as root: then it runs as its own user."""
        if os.geteuid() == 0:
            more |= {"user": POSTGRES_USER, "group": POSTGRES_USER, "extra_groups": []}
        return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, **more)

    def _run(self, *command):
        done = self._as_postgres(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
        said, _ = done.communicate()
        if done.returncode:
            raise SystemExit(f"{Path(str(command[0])).name} ended with status {done.returncode}:\n{said}")
        return said

    def start(self):
        self.folder.mkdir(parents=True)
        data, sockets, port = self.folder / "data", self.folder, free_port()
        if os.geteuid() == 0:
            shutil.chown(self.folder, POSTGRES_USER, POSTGRES_USER)
        # Everything is on the loopback interface and gone after the run.
        options = ["-U", POSTGRES_USER, "--auth=trust", "-E", "UTF8", "--locale=C"]
        self._run(self.programs / "initdb", "-D", data, *options)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": sockets,
            "max_connections": 200,
            "shared_buffers": "512MB",
            "timezone": "UTC",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = open(self.folder.parent / "postgres.log", "w")
        self.postgres = self._as_postgres(
            self.programs / "postgres", "-D", data, *flags, stdout=log, stderr=subprocess.STDOUT, cwd="/"
        )
        ready = [self.programs / "psql", "-h", "127.0.0.1", "-p", port, "-U", POSTGRES_USER, "-Atc"]
        self._until(lambda: self._answers(*ready, "select 1"), "PostgreSQL", self.postgres)
        self.version = self._run(*ready, "show server_version").strip()
        self.durable = self._run(*ready, "select current_setting('fsync') || ', synchronous_commit ' || "
                                         "current_setting('synchronous_commit')").strip()  # fmt: skip
        self._run(*ready, "create database queen")
        self._start_broker(port)
        return self

    def _answers(self, *command):
        done = self._as_postgres(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        return done.wait() == 0

    def _start_broker(self, postgres_port):
        port = free_port()
        spool = self.folder.parent / "spool"
        spool.mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
            "PORT": str(port),
            "QUEEN_BIND_ADDR": "127.0.0.1",
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(postgres_port),
            "PG_USER": POSTGRES_USER,
            "PG_PASSWORD": POSTGRES_USER,
            "PG_DATABASE": "queen",
            "DB_POOL_SIZE": "40",
            "FILE_BUFFER_DIR": str(spool),
        }
        log = open(self.folder.parent / "broker.log", "w")
        self.broker = subprocess.Popen(
            [self.program], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self.url = f"http://127.0.0.1:{port}"

        def healthy():
            with contextlib.suppress(urllib.error.URLError, OSError):
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    return answer.status == 200
            return False

        self._until(healthy, "the broker", self.broker)

    def _until(self, ready, what, process):
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                logs = [path.read_text()[-2000:] for path in self.folder.parent.glob("*.log")]
                self.stop()
                raise SystemExit(f"{what} did not start:\n" + "\n".join(logs))
            time.sleep(0.1)

    def stop(self):
        for process, polite in ((self.broker, signal.SIGTERM), (self.postgres, signal.SIGINT)):
            if process and process.poll() is None:
                process.send_signal(polite)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        # Root's folder holds files of another user: they go with it.
        shutil.rmtree(self.folder, ignore_errors=True)
