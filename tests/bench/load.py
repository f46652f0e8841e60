"""Closed-loop load on a server: rates and latencies of pushes, pop and acknowledge, and cycles.

    tests/bench/run                                       builds the release binary, then everything
    tests/bench/run --only push --clients 10 --batch 100
    tests/bench/run --queen                               beside a real Queen broker, line by line
    python tests/bench/load.py --url http://127.0.0.1:6632

Every client has a connection and a partition of its own and waits for each answer. Bodies are prepared before the
clock starts and answers are only searched for what the next request needs. A push answers after its data is synced,
so what bounds a single client is the disk; its sync time is measured first and printed.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from peer import MESSAGES_PER_SECOND
from queen_broker import VERSION, QueenBroker, installed
from wire import Connection, get, post

PAYLOAD_BYTES = 200
PROCESSES = 2
FILL_BATCH = 1000
# More than the fastest run can drain in its time; a run that drains it all ends early.
FILL = {
    ("pop+ack", 1): 4_000,
    ("pop+ack", 100): 60_000,
    ("autoAck", 100): 100_000,
    ("cycle", 10): 12_000,
    ("cycle", 100): 60_000,
}
PLAN = [
    *(("push", batch, clients) for batch in (1, 100) for clients in (1, 10)),
    *(("push+ids", 100, clients) for clients in (1, 10)),
    *(("pop+ack", batch, clients) for batch in (1, 100) for clients in (1, 10)),
    *(("autoAck", 100, clients) for clients in (1, 10)),
    *(("cycle", batch, clients) for batch in (10, 100) for clients in (1, 10)),
]

TRANSACTION_ID = re.compile(rb'"transactionId":"([^"]+)"')
PARTITION_ID = re.compile(rb'"partitionId":"([^"]+)"')
LEASE_ID = re.compile(rb'"leaseId":"([^"]+)"')


class Wrong(Exception):
    """An answer that was not what the operation must get: the run stops, for its rates would mean nothing."""


def expect(right, status, body):
    if not right:
        raise Wrong(f"{status} {body[:300]!r}")


def push_body(queue, partition, batch, ids=None):
    payload = {"i": 0, "pad": "x" * (PAYLOAD_BYTES - len('{"i":0,"pad":""}'))}
    items = [{"queue": queue, "partition": partition, "payload": payload} for _ in range(batch)]
    for item, transaction_id in zip(items, ids or []):
        item["transactionId"] = transaction_id
    return json.dumps({"items": items}, separators=(",", ":")).encode()


class Client:
    """One connection and its partition. `prepare` runs before the clock; `step` is what is timed, and returns how
    many messages it moved: 0 when there is nothing left."""

    def __init__(self, address, queue, number, batch):
        self.connection = Connection(*address)
        self.queue, self.batch = queue, batch
        self.partition = f"p{number}"

    async def prepare(self, fill):
        await self.connection.open()
        request = post("/api/v1/push", push_body(self.queue, self.partition, FILL_BATCH))
        for _ in range(0, fill, FILL_BATCH):
            status, body = await self.connection.send(request)
            expect(status == 201, status, body)

    def pop_request(self, group):
        return get(
            f"/api/v1/pop/queue/{self.queue}/partition/{self.partition}?batch={self.batch}&wait=false"
            f"&consumerGroup={group}&subscriptionMode=all"
        )

    async def popped(self):
        """The next batch: its transaction ids and the whole answer; no ids when there is nothing left."""
        status, body = await self.connection.send(self.pop)
        if status == 204:
            return [], body
        ids = TRANSACTION_ID.findall(body)
        expect(status == 200 and ids, status, body)
        return ids, body


class Push(Client):
    async def prepare(self, fill):
        await super().prepare(0)
        self.request = post("/api/v1/push", push_body(self.queue, self.partition, self.batch))

    async def step(self):
        status, body = await self.connection.send(self.request)
        expect(status == 201 and body.count(b'"queued"') == self.batch, status, body)
        return self.batch


class PushWithIds(Client):
    """As the SDKs push: a fresh transaction id with every message, which the server must know to be new."""

    MARK = "################"

    async def prepare(self, fill):
        await super().prepare(0)
        prefix = uuid.uuid4().hex[:16]
        body = push_body(
            self.queue, self.partition, self.batch, [f"{prefix}{self.MARK}{i:04}" for i in range(self.batch)]
        )
        self.head = post("/api/v1/push", body)[: -len(body)]
        self.pieces = body.split(self.MARK.encode())
        self.count = 0

    async def step(self):
        self.count += 1
        status, body = await self.connection.send(self.head + (b"%016d" % self.count).join(self.pieces))
        expect(status == 201 and body.count(b'"queued"') == self.batch, status, body)
        return self.batch


class PopAndAck(Client):
    async def prepare(self, fill):
        await super().prepare(fill)
        self.pop = self.pop_request("g")

    async def step(self):
        ids, body = await self.popped()
        if not ids:
            return 0
        tail = b'","partitionId":"%s","leaseId":"%s","status":"completed"}' % (
            PARTITION_ID.search(body).group(1),
            LEASE_ID.search(body).group(1),
        )
        acks = b",".join(b'{"transactionId":"' + one + tail for one in ids)
        status, body = await self.connection.send(
            post("/api/v1/ack/batch", b'{"consumerGroup":"g","acknowledgments":[' + acks + b"]}")
        )
        expect(status == 200 and body.count(b'"success":true') == len(ids), status, body)
        return len(ids)


class PopAutoAck(Client):
    """Delivery that is the acknowledgement: one call."""

    async def prepare(self, fill):
        await super().prepare(fill)
        self.pop = self.pop_request("g").replace(b"&wait=false", b"&wait=false&autoAck=true")

    async def step(self):
        ids, _ = await self.popped()
        return len(ids)


class Cycle(Client):
    """What a worker of a stream processor does: pop, read the state, commit state, output and position."""

    async def prepare(self, fill):
        await super().prepare(fill)
        self.group = f"streams.{self.queue}"
        self.pop = self.pop_request(self.group)
        registration = {
            "name": self.queue,
            "source_queue": self.queue,
            "sink_queue": f"{self.queue}-out",
            "config_hash": "h",
        }
        status, body = await self.connection.send(post("/streams/v1/queries", json.dumps(registration).encode()))
        expect(status == 200, status, body)
        self.query = json.loads(body)["query_id"]
        self.sum = 0

    async def step(self):
        ids, body = await self.popped()
        if not ids:
            return 0
        partition, lease = (pattern.search(body).group(1).decode() for pattern in (PARTITION_ID, LEASE_ID))
        place = {"query_id": self.query, "partition_id": partition}
        status, body = await self.connection.send(
            post("/streams/v1/state/get", json.dumps({**place, "keys": []}).encode())
        )
        expect(status == 200, status, body)
        self.sum += len(ids)
        commit = {
            **place,
            "consumer_group": self.group,
            "release_lease": True,
            "state_ops": [
                {
                    "type": "upsert",
                    "key": f"tumb:60\u001fw\u001f{partition}",
                    "value": {"acc": {"sum": self.sum}, "windowStart": 0, "windowEnd": 60000},
                }
            ],
            "push_items": [
                {"queue": f"{self.queue}-out", "partition": self.partition, "payload": {"sum": self.sum}}
            ],
            "ack": {"transactionId": ids[-1].decode(), "leaseId": lease, "status": "completed", "count": len(ids)},
        }
        status, body = await self.connection.send(post("/streams/v1/cycle", json.dumps(commit).encode()))
        expect(status == 200 and b'"success":false' not in body, status, body)
        return len(ids)


CLIENTS = {"push": Push, "push+ids": PushWithIds, "pop+ack": PopAndAck, "autoAck": PopAutoAck, "cycle": Cycle}


async def drive(operation, batch, numbers, address, queue, seconds, fill, meet, stop):
    clients = [CLIENTS[operation](address, queue, number, batch) for number in numbers]
    await asyncio.gather(*(client.prepare(fill) for client in clients))
    await asyncio.to_thread(meet.wait)
    begun = time.perf_counter()
    latencies, moved = [], 0

    async def loop(client):
        nonlocal moved
        while not stop.value and time.perf_counter() - begun < seconds:
            start = time.perf_counter()
            messages = await client.step()
            if not messages:
                break
            latencies.append(time.perf_counter() - start)
            moved += messages
        stop.value = 1
        client.connection.close()

    await asyncio.gather(*(loop(client) for client in clients))
    return latencies, moved, time.perf_counter() - begun


def process(results, *arguments):
    try:
        results.put(asyncio.run(drive(*arguments)))
    except Exception as error:  # the parent prints it and stops
        results.put(f"{type(error).__name__}: {error}")


def measure(operation, batch, clients, address, seconds):
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    parts = min(PROCESSES, clients)
    results, meet, stop = (
        multiprocessing.Queue(),
        multiprocessing.Barrier(parts),
        multiprocessing.Value("i", 0, lock=False),
    )
    fill = FILL.get((operation, batch), 0)
    running = [
        multiprocessing.Process(
            target=process,
            daemon=True,
            args=(
                results,
                operation,
                batch,
                range(part, clients, parts),
                address,
                queue,
                seconds,
                fill,
                meet,
                stop,
            ),
        )
        for part in range(parts)
    ]
    for one in running:
        one.start()
    found = []
    for _ in running:
        result = results.get()
        if isinstance(result, str):
            for one in running:
                one.kill()
            raise SystemExit(f"{operation} batch {batch}, {clients} clients: {result}")
        found.append(result)
    for one in running:
        one.join()
    latencies = sorted(latency for result in found for latency in result[0])
    moved, elapsed = sum(result[1] for result in found), max(result[2] for result in found)
    return moved / elapsed, len(latencies) / elapsed, latencies


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else 0.0


def sync_milliseconds(folder):
    times = []
    with open(folder / "sync-probe", "wb") as file:
        for _ in range(50):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return sorted(times)[len(times) // 2]


def start(binary, data):
    server = subprocess.Popen(
        [binary, "serve", "--listen", "127.0.0.1:0", "--data", data],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=open(f"{data}.log", "w"),
        text=True,
    )
    for line in server.stdout:
        if line.startswith("listening on "):
            return server, line.split()[2]
    raise SystemExit(f"the server did not start: {Path(f'{data}.log').read_text()}")


def program():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = arguments.add_mutually_exclusive_group(required=True)
    server.add_argument("--binary", help="start this tidewheel on a temporary data folder")
    server.add_argument("--url", help="use the server that listens here")
    arguments.add_argument("--seconds", type=float, default=8, help="for each line of the table")
    arguments.add_argument("--only", choices=sorted(CLIENTS), help="only this operation")
    arguments.add_argument("--clients", type=int, help="only lines with this many clients")
    arguments.add_argument("--batch", type=int, help="only lines with this batch")
    arguments.add_argument("--passes", type=int, default=1, help="repeat the table; look at the spread")
    arguments.add_argument("--json", help="also write the results to this file, one object a line")
    arguments.add_argument(
        "--queen",
        metavar="FOLDER",
        help=f"measure a Queen broker {VERSION} over PostgreSQL as well, built into this folder and started on a "
        "fresh database: each line first here, then there",
    )
    return arguments.parse_args()


def chosen(options):
    return [
        line
        for line in PLAN
        if options.only in (None, line[0])
        and options.batch in (None, line[1])
        and options.clients in (None, line[2])
    ]


def address_of(url):
    return urlsplit(url).hostname, urlsplit(url).port


def kept(options, server, line, rate, calls, latencies):
    """A result as an object, also written to the file that was asked for."""
    operation, batch, clients = line
    result = {
        "server": server,
        "operation": operation,
        "batch": batch,
        "clients": clients,
        "messages_per_second": round(rate),
        "calls_per_second": round(calls),
        "p50_ms": round(percentile(latencies, 0.5), 2),
        "p99_ms": round(percentile(latencies, 0.99), 2),
    }
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps(result) + "\n")
    return result


def alone(options, ours):
    """The table of this server, beside figures that a peer had elsewhere."""
    print(
        f"{'operation':10} {'batch':>5} {'clients':>7} {'messages/s':>11} {'calls/s':>8} {'p50 ms':>7} {'p99 ms':>7}"
        f"   {'peer messages/s':>17} {'times its best':>14}",
        flush=True,
    )
    for line in chosen(options) * options.passes:
        rate, calls, latencies = measure(*line, ours, options.seconds)
        low, high = MESSAGES_PER_SECOND.get(line, (None, None))
        peer = f"{f'{low}-{high}':>17} {rate / high:>13.1f}x" if high else f"{'-':>17} {'-':>14}"
        found = kept(options, "tidewheel", line, rate, calls, latencies)
        print(
            f"{line[0]:10} {line[1]:>5} {line[2]:>7} {rate:>11.0f} {calls:>8.0f} {found['p50_ms']:>7.1f} "
            f"{found['p99_ms']:>7.1f}   {peer}",
            flush=True,
        )


def beside(options, ours, theirs):
    """Both servers in one run, line by line, so that whatever else the machine does meets both."""
    print(
        f"{'operation':10} {'batch':>5} {'clients':>7}   {'here msg/s':>10} {'p50 ms':>7} {'p99 ms':>7}   "
        f"{'queen msg/s':>11} {'p50 ms':>7} {'p99 ms':>7}   {'here / queen':>12}",
        flush=True,
    )
    ratios = {}
    for line in chosen(options) * options.passes:
        here = kept(options, "tidewheel", line, *measure(*line, ours, options.seconds))
        there = kept(options, "queen", line, *measure(*line, theirs, options.seconds))
        ratio = here["messages_per_second"] / max(1, there["messages_per_second"])
        ratios.setdefault(line, []).append(ratio)
        print(
            f"{line[0]:10} {line[1]:>5} {line[2]:>7}   {here['messages_per_second']:>10} {here['p50_ms']:>7.1f} "
            f"{here['p99_ms']:>7.1f}   {there['messages_per_second']:>11} {there['p50_ms']:>7.1f} "
            f"{there['p99_ms']:>7.1f}   {ratio:>11.1f}x",
            flush=True,
        )
    medians = {line: sorted(found)[len(found) // 2] for line, found in ratios.items()}
    behind = [f"{line[0]} {line[1]} x {line[2]}: {ratio:.1f}x" for line, ratio in medians.items() if ratio < 2]
    print(
        f"ahead by 2x or more in {len(medians) - len(behind)} of {len(medians)} lines; the others: {behind or 'none'}"
    )


def main():
    options = program()
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-") as temporary:
        folder, process_, url, broker = Path(temporary), None, options.url, None
        try:
            if options.queen:
                # Two users need to pass: PostgreSQL runs as its own.
                folder.chmod(0o755)
                broker = QueenBroker(installed(Path(options.queen)), folder / "queen").start()
            if options.binary:
                process_, url = start(options.binary, str(folder / "data"))
            print(
                f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, fdatasync of 4 KB here takes "
                f"{sync_milliseconds(folder):.2f} ms (median), payload {PAYLOAD_BYTES} bytes"
            )
            if broker:
                print(f"queen {VERSION} over PostgreSQL {broker.version}: fsync {broker.durable}")
                beside(options, address_of(url), address_of(broker.url))
            else:
                alone(options, address_of(url))
        finally:
            if process_:
                process_.terminate()
                process_.wait()
            if broker:
                broker.stop()


if __name__ == "__main__":
    sys.exit(main())
