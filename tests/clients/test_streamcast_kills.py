"""Kill -9 under exactly-once publishers and inbox consumers of the published streamcast client."""

import asyncio
import contextlib
import random

import streamcast

from declared import at, declare, raw, trade

PUBLISHERS = 3
ROWS = 240


async def test_scenario_15_marks_offsets_and_identity_survive_a_kill(own_stack, tmp_path, name):
    stack = own_stack(environment=declare(tmp_path)).start()
    async with streamcast.publish(at(stack, "orders"), publisher=name) as out:
        identity = out.info.stream_id
        offsets = await out.send_many([trade(n) for n in range(1, 6)], seq=1)
    stack.kill()
    stack.start()
    async with streamcast.publish(at(stack, "orders"), publisher=name) as out:
        assert out.info.stream_id == identity
        assert (out.info.publisher.last_seq, out.info.publisher.last_offset) == (5, offsets[-1])
        assert await out.send(trade(5), seq=5) == offsets[-1]
        first = await out.send(trade(1), seq=1)
        assert first in (offsets[0], None)
        assert await out.send(trade(6), seq=6) == offsets[-1] + 1


async def test_scenario_29_every_row_once_and_in_order_whatever_is_killed(own_stack, tmp_path, name):
    stack = own_stack(environment=declare(tmp_path)).start()
    done = asyncio.Event()
    chance = random.Random(7)

    async def publish(k):
        store = await streamcast.SqliteStore.open(str(tmp_path / f"outbox-{k}.db"))
        async with streamcast.outbox(at(stack, "orders"), publisher=f"{name}-{k}", store=store, send_batch=7) as out:
            for n in range(0, ROWS, 4):
                async with store.transaction() as tx:
                    await out.send_many([trade(n + i, f"p{k}") for i in range(4)], tx=tx)
                await asyncio.sleep(chance.random() / 20)
            await out.flush(120)
        await store.close()

    async def consume():
        store, found = await streamcast.SqliteStore.open(str(tmp_path / "inbox.db")), []
        async with streamcast.inbox(
            at(stack, "orders"), subscriber=name, store=store, offset=streamcast.EARLIEST
        ) as box:
            while len(found) < PUBLISHERS * ROWS:
                rows, _ = await box.recv_many(50)
                found += rows
        await store.close()
        return found

    async def kill():
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), 0.5 + chance.random())
            if not done.is_set():
                await asyncio.to_thread(stack.kill)
                await asyncio.to_thread(stack.start)

    killing = asyncio.create_task(kill())
    try:
        async with asyncio.timeout(240):
            consuming = asyncio.create_task(consume())
            await asyncio.gather(*(publish(k) for k in range(PUBLISHERS)))
            done.set()
            found = await consuming
    finally:
        done.set()
        await killing
    for k in range(PUBLISHERS):
        assert [row["event_ts"] for _, _, row in found if row["ticker"] == f"p{k}"] == list(range(ROWS))
    offsets = [offset for offset, _, _ in found]
    assert offsets == list(range(1, PUBLISHERS * ROWS + 1))
    async with raw(stack, "orders?offset=0") as (greeting, _):
        assert greeting["replay"] == [1, PUBLISHERS * ROWS + 1], "nothing was stored twice"
