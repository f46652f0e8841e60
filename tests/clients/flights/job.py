"""Runs the main job from end to end and prints what it checked; the exit status is 0 only when all of it holds.

    python -m flights.job --binary target/debug/tidewheel --data /tmp/new-folder [--rows 6000] [--no-kill]
    python -m flights.job --binary target/debug/tidewheel --store dynamodb [--rows 6000]
    python -m flights.job --url http://127.0.0.1:6632 [--data FOLDER-OF-THAT-SERVER] [--no-socket]

The producers stop half way until the two workers have folded that half; then one worker is told to die by SIGKILL in
the middle of the next batch it holds, and the producers go on. With --binary the job starts the server itself, kills
it once with SIGKILL while the second half is pushed, and starts it again on the same folder. With --store dynamodb that
server has no folder: the store is emulators of DynamoDB and S3, which are started for the job, with the template's table
and bucket in them, and the tables are read at s3://. With --url the server is
somebody else's: it is not killed, and its tables are read only if --data names its folder. With --no-socket nobody
follows a partition live, for a server that speaks HTTP only.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import httpx

from shared_store import deployed
from stack import Stack

from . import source, tables
from .report import Checks, Progress

CLIENTS = Path(__file__).resolve().parent.parent
FOLLOWED = "JFK"
LOOK_SECONDS = 0.1
# Nothing moves for this long: give up and say what was seen. Longer than any lease and any retry.
STILL_SECONDS = 120
SEAL_SECONDS = 180


class Part:
    """A client in a process of its own, and the last thing it said of each kind."""

    def __init__(self, name, *arguments):
        self.name = name
        self.said = {}
        self.other = []
        environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "PYTHONPATH": str(CLIENTS)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"flights.{name}", *map(str, arguments)],
            cwd=CLIENTS,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                try:
                    self.said.update(json.loads(line))
                    continue
                except ValueError:
                    pass
            self.other = [*self.other[-19:], line]

    def get(self, fact, default=0):
        return self.said.get(fact, default)

    @property
    def finished(self):
        return self.get("finished", False)

    @property
    def died(self):
        return self.process.poll() is not None and not self.finished

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, seconds=60):
        """Asks for an end and waits; what it said last is complete then."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)


class Job:
    """The run. `stack` is None when the server is somebody else's."""

    def __init__(self, options, url, stack, folder):
        self.options = options
        self.url = url
        self.stack = stack
        self.folder = folder
        self.checks = Checks()
        self.progress = Progress()
        self.parts = []
        self.server_kills = 0
        self.victim_killed_at = None

    def start_part(self, name, *arguments):
        part = Part(name, *arguments)
        self.parts.append(part)
        return part

    def run(self):
        self.progress.show("reading the flights", now=True)
        by_origin = source.flights(self.options.rows)
        facts = source.table_of(by_origin)
        wanted = source.expected_windows(facts)
        events = sum(map(len, by_origin.values())) + len(source.ORIGINS)
        self.progress.note(f"{facts.num_rows} flights, {len(wanted)} windows to come")
        try:
            self.flow(events, len(wanted), len(by_origin[FOLLOWED]) + 1)
            self.check_windows(wanted)
            self.check_left_over()
            if self.options.data or self.stack:
                self.check_tables(by_origin, facts, wanted)
        finally:
            for part in self.parts:
                part.signal(signal.SIGKILL)
        return self.checks

    def flow(self, events, windows, followed):
        """Everything at once: a producer for each origin, two workers, a consumer and a socket."""
        begun = time.monotonic()
        rows = ["--rows", self.options.rows] if self.options.rows is not None else []
        kill = self.options.kill
        producer = self.start_part(
            "produce",
            self.url,
            "--lease",
            self.options.lease,
            "--batch",
            self.options.push_batch,
            *(["--pause-at-half"] if kill else []),
            *rows,
        )
        self.wait_ready(producer)
        follower = None
        if self.options.socket:
            socket_url = self.url.replace("http", "ws", 1)
            follower = self.start_part("follow", socket_url, "--partition", FOLLOWED, *rows)
        workers = [self.start_part("worker", self.url, "--batch", self.options.batch) for _ in range(2)]
        drain = self.start_part("drain", self.url, self.folder / "windows.jsonl")
        victim = workers[0]

        last, moved = None, time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            pushed, rows_seen = producer.get("pushed"), follower.get("rows") if follower else 0
            folded = sum(worker.get("folded") for worker in workers)
            drained = drain.get("windows")
            now = (pushed, folded, drained, rows_seen)
            self.progress.show(
                f"pushed {pushed}/{events}  folded {folded}/{events}  windows {drained}/{windows}  "
                + (f"{FOLLOWED} live {rows_seen}/{followed}" if follower else "")
            )
            if now != last:
                last, moved = now, time.monotonic()
            if producer.finished and (follower is None or follower.finished) and drained >= windows:
                break
            broken = [
                part.name for part in self.parts if part.died and not (part is victim and self.victim_killed_at)
            ]
            if broken or time.monotonic() - moved > STILL_SECONDS:
                self.progress.note(f"stopped: {', '.join(broken) or 'nothing moves'}")
                break
            followed_live = follower is None or follower.get("connections") > 0
            if kill and self.victim_killed_at is None and producer.get("half") and folded == pushed and followed_live:
                self.victim_killed_at = folded
                self.progress.note(f"one worker is to die in its next batch, {folded} of {events} folded")
                victim.signal(signal.SIGUSR1)
                producer.go_on()
            if (
                kill
                and self.stack
                and not self.server_kills
                and self.victim_killed_at
                and pushed > self.victim_killed_at
            ):
                self.server_kills += 1
                self.stack.kill()
                self.progress.note(f"server killed with SIGKILL, {pushed} of {events} pushed")
                self.stack.start()
                self.progress.note(f"server started again on the same {'store' if self.stack.store else 'folder'}")

        elapsed = time.monotonic() - begun
        for part in (*workers, drain):
            part.end()
        self.progress.note(
            f"the flow took {elapsed:.1f} s, {events / elapsed:.0f} events/s from push to checked window"
        )
        for part in self.parts:
            if part.died and part is not victim:
                print(f"--- {part.name} ended early; it said:\n{''.join(part.other)}")

        answered = producer.get("queued") + producer.get("duplicate")
        self.checks.equal("push: every event answered, once", answered, events)
        self.checks.equal("push: offsets are dense and in the order pushed", producer.get("misplaced", None), 0)
        if kill:
            self.checks.equal(
                "kill: one worker died by SIGKILL, holding a batch", victim.process.poll(), -signal.SIGKILL
            )
            if self.stack:
                self.checks.equal("kill: the server was killed and came back", self.server_kills, 1)
        survivors = [worker for worker in workers if worker.finished]
        self.checks.check("stream: the surviving workers ended well", survivors, f"{[w.said for w in workers]}")
        self.checks.equal("stream: no event came late", sum(worker.get("late") for worker in survivors), 0)
        if follower:
            self.check_follower(follower, followed)

    def check_follower(self, follower, followed):
        self.checks.check(
            f"socket: every row of {FOLLOWED} once, in order",
            follower.finished and follower.get("fault", None) is None,
            f"{follower.said}",
        )
        self.checks.equal("socket: number of rows", follower.get("rows"), followed)
        if self.server_kills:
            self.checks.check(
                "socket: it went on after the server's death", follower.get("connections") > 1, f"{follower.said}"
            )

    def wait_ready(self, part):
        deadline = time.monotonic() + STILL_SECONDS
        while not part.get("ready", False):
            if part.died or time.monotonic() > deadline:
                raise SystemExit(f"{part.name} did not get ready; it said:\n{''.join(part.other)}")
            time.sleep(LOOK_SECONDS)

    def check_windows(self, wanted):
        found, messages, misplaced = defaultdict(list), set(), 0
        with open(self.folder / "windows.jsonl") as file:
            for line in file:
                message = json.loads(line)
                if message["id"] in messages:
                    continue
                messages.add(message["id"])
                window = message["data"]
                misplaced += message["partition"] != window["origin"]
                key = (window["origin"], window["carrier"], window["windowStart"])
                found[key].append((window["count"], window["sum"], window["max"]))
        missing = wanted.keys() - found.keys()
        strange = found.keys() - wanted.keys()
        twice = {key: values for key, values in found.items() if len(values) > 1}
        unequal = {
            key: (values, wanted[key])
            for key, values in found.items()
            if key in wanted and any(value != wanted[key] for value in values)
        }
        say = self.checks.check
        say(f"windows: none of {len(wanted)} is missing", not missing, f"{len(missing)}, as {sorted(missing)[:3]}")
        say("windows: none came twice", not twice, f"{len(twice)}, as {list(twice.items())[:3]}")
        say(
            "windows: each equals the one computed from the source",
            found and not unequal,
            f"{len(unequal)}, as {list(unequal.items())[:3]}",
        )
        say("windows: none that the source does not have", not strange, f"{len(strange)}, as {sorted(strange)[:3]}")
        say("windows: each is in the partition of its origin", not misplaced, f"{misplaced} are not")

    def check_left_over(self):
        """The query has acknowledged all of its source: its group finds nothing more."""
        answer = httpx.get(
            f"{self.url}/api/v1/pop/queue/{source.QUEUE}",
            params={"consumerGroup": f"streams.{source.QUERY}", "batch": 10, "wait": "false"},
            trust_env=False,
        )
        self.checks.equal("stream: nothing of the source is left", answer.status_code, 204)

    def check_tables(self, by_origin, facts, wanted):
        store = self.stack.store if self.stack else None
        if store:
            folder = tables.bucket_of(store, source.QUEUE)
        else:
            folder = tables.folder_of(self.options.data or self.stack.data, source.QUEUE)
        rows = facts.num_rows + len(source.ORIGINS)
        self.progress.note(f"waiting for the table to hold {rows} rows")
        found = tables.wait_for(folder, rows, SEAL_SECONDS)
        self.checks.equal(f"table: all rows are published in {'the bucket' if store else 'the folder'}", found, rows)
        if not found:
            return
        self.progress.note("reading the table with DuckDB and PyIceberg")
        duck = tables.with_duckdb(folder)
        self.checks.equal("table: columns", duck["columns"], tables.COLUMNS)
        self.checks.equal("DuckDB: flights, departures and sum of delays", duck["totals"], source.totals(facts))
        self.checks.equal("DuckDB: each flight once", duck["distinct"], facts.num_rows)
        self.checks.equal(
            "DuckDB: offsets of every partition are dense from 0", duck["dense_partitions"], len(source.ORIGINS)
        )
        self.checks.check("DuckDB: hourly windows over the table equal the source's", duck["windows"] == wanted)
        ice = tables.with_pyiceberg(folder)
        self.checks.equal("PyIceberg: number of rows", ice["rows"], rows)
        for origin in source.ORIGINS:
            self.checks.check(
                f"PyIceberg: {origin} row for row as pushed",
                ice["payloads"][origin] == source.events(by_origin, origin),
            )
        flown = Counter(flight["row"] for payloads in ice["payloads"].values() for flight in payloads)
        self.checks.equal("PyIceberg: each flight once", max(n for row, n in flown.items() if row is not None), 1)
        delays = sum(flight["dep_delay"] or 0 for payloads in ice["payloads"].values() for flight in payloads)
        self.checks.equal("PyIceberg: sum of delays", delays, source.totals(facts)[2])
        self.checks.equal("PyIceberg: transaction ids are the producers'", ice["misnamed"], 0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = arguments.add_mutually_exclusive_group(required=True)
    server.add_argument("--binary", help="start this tidewheel")
    server.add_argument("--url", help="use the server that listens here")
    arguments.add_argument(
        "--store",
        choices=["embedded", "dynamodb"],
        default="embedded",
        help="with --binary: a data folder, or the deployed store on emulators",
    )
    arguments.add_argument("--data", help="data folder; with --binary it must be new (default: a temporary one)")
    arguments.add_argument(
        "--rows", type=int, help=f"how many flights, spread over the origins (default: all {source.ALL_ROWS})"
    )
    arguments.add_argument(
        "--kill", action=argparse.BooleanOptionalAction, default=True, help="kill a worker and the server"
    )
    arguments.add_argument(
        "--socket", action=argparse.BooleanOptionalAction, default=True, help="follow a partition live"
    )
    arguments.add_argument(
        "--lease", type=int, default=10, help="seconds until a dead worker's batch is given to another"
    )
    arguments.add_argument("--batch", type=int, default=2000, help="events in a cycle, at most")
    arguments.add_argument("--push-batch", type=int, default=1000, help="events in a push")
    arguments.add_argument(
        "--seal-every", type=int, default=5, help="seconds between two publications of the tables"
    )
    options = arguments.parse_args()

    # Whatever ends this process, the server that it started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="tidewheel-flights-") as temporary:
        folder = Path(temporary)
        if options.store != "embedded" and (options.url or options.data):
            raise SystemExit("--store dynamodb goes with --binary, and without --data: its server has no folder")
        if options.url:
            checks = Job(options, options.url.rstrip("/"), None, folder).run()
        else:
            data = Path(options.data).resolve() if options.data else folder / "data"
            if data.exists() and any(data.iterdir()):
                raise SystemExit(f"{data} is not empty: the job counts rows from nothing")
            place = deployed() if options.store == "dynamodb" else contextlib.nullcontext()
            with (
                place as store,
                Stack(options.binary, data, seal_every=options.seal_every, store=store) as stack,
            ):
                checks = Job(options, stack.url, stack, folder).run()
    checks.print()
    return 0 if checks.passed else 1


if __name__ == "__main__":
    sys.exit(main())
