"""What the published streamcast client reads of a stream's tables, and how that joins what the socket sends."""

import asyncio

import httpx
import pytest
import streamcast

from declared import TRADES, at, declare, trade
from shared_store import deployed
from stack import Stack
from test_control import Controller

SECONDS = 40


@pytest.fixture(scope="module", params=["file", "s3"])
def served(request, binary, tmp_path_factory):
    """The local stack, and the relay on the emulated deployed store, whose tables lie in the bucket."""
    folder = tmp_path_factory.mktemp(f"history-{request.param}")
    if request.param == "file":
        with Stack(binary, folder / "data", environment=declare(folder)) as running:
            yield running
        return
    with deployed() as store, pytest.MonkeyPatch.context() as environment:
        # The client's readers ask the environment for the bucket's place and credentials.
        for variable, value in store.environment.items():
            if not variable.startswith("TIDEWHEEL_"):
                environment.setenv(variable, value)
        environment.setenv("AWS_ENDPOINT_URL", store.endpoints.s3)
        with Stack(binary, folder / "data", environment=declare(folder), store=store) as running:
            yield running


async def published_to(stack, stream, offset):
    """The stream's metadata, once its tables reach the offset."""
    async with streamcast.connect(at(stack, stream)) as subscription:
        metadata = subscription.info.metadata
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with await streamcast.Stream.snapshot(metadata) as snapshot:
                    if snapshot.end_offset > offset:
                        return metadata
            except streamcast.SnapshotUnavailable:
                pass
            await asyncio.sleep(0.1)


async def test_scenario_20_a_reader_far_behind_comes_by_the_tables_to_the_socket(served):
    """Rows go on being published while it catches up; it gets each once."""
    stop = asyncio.Event()
    async with streamcast.publish(at(served, "short")) as out:
        first = await out.send(trade(0))
        await out.send_many([trade(n) for n in range(1, 60)])
        await published_to(served, "short", first + 59)

        async def go_on():
            n = 60
            while not stop.is_set():
                await out.send(trade(n))
                n += 1
                await asyncio.sleep(0.02)
            return n

        going = asyncio.create_task(go_on())
        try:
            found = []
            async with streamcast.connect(at(served, "short"), offset=first, catch_up=True) as subscription:
                async with asyncio.timeout(SECONDS):
                    while len(found) < 90:
                        found.append(await subscription.recv())
        finally:
            stop.set()
        assert await going > 60
    assert [offset for offset, _, _ in found] == list(range(first, first + 90))
    assert [row["event_ts"] for _, _, row in found] == list(range(90))


async def test_scenario_22_a_reader_comes_across_a_migration_by_both_tables(served, name):
    name = name.replace("_", "-")
    controller = Controller(served.url)
    definition = {"schema": TRADES, "storage_profile": "local", "initialization": "create_if_absent"}
    definition["exactly_once"] = True
    assert controller.change("PUT", f"/streams/{name}", definition, "*")["status"] == "succeeded"
    controller.desire(name, "serving")

    async def publish(numbers, **more):
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    async with streamcast.publish(at(served, name), publisher="p") as out:
                        last = out.info.publisher.last_seq
                        return last, await out.send_many([trade(n, **more) for n in numbers], seq=last + 1)
                except streamcast.StreamNotFound:
                    await asyncio.sleep(0.1)

    assert await publish(range(30)) == (0, list(range(1, 31)))
    controller.desire(name, "stopped")
    view = controller.view(name)
    wider = {**TRADES, "properties": {**TRADES["properties"], "venue": {"type": ["string", "null"]}}}
    target = {"stream_id": view["stream_id"], "schema": wider, "sort_by": []}
    operation = controller.change("POST", f"/streams/{name}/migrations", target, f'"{view["revision"]}"')
    assert operation["status"] == "succeeded", operation
    controller.desire(name, "serving")
    # The mark is carried over the seam.
    assert await publish(range(30, 60), venue="X") == (30, list(range(31, 61)))

    with pytest.raises(streamcast.NotReplayable) as refused:
        async with streamcast.connect(at(served, name), offset=5):
            pass
    assert (refused.value.why, refused.value.fields["earliest"]) == ("evicted", 31)
    await published_to(served, name, 60)
    async with streamcast.connect(at(served, name), offset=5, catch_up=True) as subscription:
        found = []
        async with asyncio.timeout(SECONDS):
            while len(found) < 56:
                found.append(await subscription.recv())
    assert [offset for offset, _, _ in found] == list(range(5, 61))
    assert [row["event_ts"] for _, _, row in found] == list(range(4, 60))
    assert [row.get("venue") for _, _, row in found] == [None] * 26 + ["X"] * 30


async def test_scenario_24_a_stream_made_again_is_another_stream(own_stack, tmp_path, name):
    stack = own_stack(environment=declare(tmp_path, {"again": {"schema": TRADES, "exactly_once": True}})).start()
    store = await streamcast.SqliteStore.open(str(tmp_path / "outbox.db"))
    async with streamcast.outbox(at(stack, "again"), publisher=name, store=store) as out:
        async with store.transaction() as tx:
            await out.send_many([trade(n) for n in range(5)], tx=tx)
        await out.flush(SECONDS)
    await store.close()
    async with streamcast.connect(at(stack, "again")) as subscription:
        before = subscription.info
    assert before.end_offset == 6
    httpx.delete(f"{stack.url}/api/v1/resources/queues/again", timeout=30, trust_env=False).raise_for_status()
    assert stack.terminate() == 0
    stack.start()
    async with streamcast.connect(at(stack, "again")) as subscription:
        after = subscription.info
    assert after.stream_id != before.stream_id and after.end_offset == 1
    store = await streamcast.SqliteStore.open(str(tmp_path / "outbox.db"))
    with pytest.raises(streamcast.StreamMismatch):
        async with streamcast.outbox(at(stack, "again"), publisher=name, store=store) as out:
            async with store.transaction() as tx:
                await out.send_many([trade(9)], tx=tx)
            await out.flush(SECONDS)
    await store.close()


async def test_scenario_25_every_snapshot_has_each_row_once_while_rows_come(served):
    stop, seen = asyncio.Event(), []
    async with streamcast.publish(at(served, "trades")) as out:
        first = await out.send(trade(0))
        metadata = await published_to(served, "trades", first)

        async def go_on():
            while not stop.is_set():
                await out.send_many([trade(n) for n in range(20)])
                await asyncio.sleep(0.01)

        going = asyncio.create_task(go_on())
        try:
            async with asyncio.timeout(2 * SECONDS):
                while len(seen) < 4:
                    async with await streamcast.Stream.snapshot(metadata) as snapshot:
                        table = await snapshot.sql(
                            "SELECT count(*) AS n, count(DISTINCT litelink_offset) AS d, min(litelink_offset) AS low, "
                            "max(litelink_offset) AS high FROM log"
                        ).read_all()
                    (counts,) = table.to_pylist()
                    assert counts["n"] == counts["d"] == counts["high"] - counts["low"] + 1, counts
                    if not seen or counts["high"] > seen[-1]:
                        seen.append(counts["high"])
                    await asyncio.sleep(0.2)
        finally:
            stop.set()
            await going
