"""Locks and semaphores through Queen's Python SDK: leases with tokens, and the guard that makes work exclusive."""

import asyncio
from datetime import timedelta

import pytest
from queen import LockError, LockNotHeldError

from conftest import queen_at
from consuming import eventually, numbers, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401


@covers(
    "Queen.lock", "Lock(ttl_seconds)", "Lock(ttl)", "Lock(owner)", "Lock.acquire", "Lock.release", "Lock.held",
    "Lock.token", "Lock.slot", "Lock.name", "Lock.owner", "Lock.limit", "Lock.ttl_seconds", "Lock.renew",
)  # fmt: skip
async def test_a_lock_has_one_holder_and_its_token_rises(queen, name):
    mine = queen.lock(name, ttl_seconds=30, owner="me")
    other = queen.lock(name, ttl=timedelta(seconds=30))
    assert (mine.name, mine.owner, mine.limit, mine.ttl_seconds) == (name, "me", 1, 30)
    assert await mine.acquire() is True and await other.acquire() is False
    assert mine.held and mine.slot == 0 and not other.held
    first = mine.token
    assert await mine.renew() is True and mine.token > first
    assert await mine.release() is True and not mine.held
    assert await other.acquire() is True and other.token > first
    assert await other.release() is True and await other.release() is False


@covers("Lock(wait)", "Lock.acquire(wait)", "Lock(retry_min)", "Lock(retry_max)", "Lock.run", "Lock.run(wait)")
async def test_who_waits_gets_the_lock_when_it_is_free(queen, name):
    holder = queen.lock(name, ttl_seconds=30)
    assert await holder.acquire()
    eager = {"ttl_seconds": 30, "wait": 20, "retry_min": 0.01, "retry_max": 0.05}
    waiting = [asyncio.create_task(queen.lock(name, **eager).acquire())]
    waiting.append(asyncio.create_task(queen.lock(name, ttl_seconds=30).acquire(wait=20)))
    assert await holder.release()
    done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [True]
    for task in waiting:
        task.cancel()
    assert (await queen.lock(name, ttl_seconds=30).run(lambda lock: None))["acquired"] is False

    async def work(lock):
        assert lock.held
        return 7

    other = queen.lock(f"{name}-free", ttl_seconds=30)
    assert await other.run(work, wait=1) == {"acquired": True, "value": 7} and not other.held


@covers("Queen.semaphore", "Lock(limit)", "Queen.locks", "Locks.get")
async def test_a_semaphore_grants_its_permits_and_no_more(queen, name):
    permits = [queen.semaphore(name, 3, ttl_seconds=30) for _ in range(9)]
    await asyncio.gather(*(permit.acquire() for permit in permits))

    async def full():
        for permit in permits:
            if sum(p.held for p in permits) < 3:
                await permit.acquire()
        return sum(p.held for p in permits) == 3

    assert await eventually(full)
    assert sorted(permit.slot for permit in permits if permit.held) == [0, 1, 2]
    assert not await queen.semaphore(name, 3, ttl_seconds=30).acquire()
    who = await queen.locks.get(name)
    assert who and [holder["slot"] for holder in who["holders"]] == [0, 1, 2]
    assert {holder["token"] for holder in who["holders"]} == {p.token for p in permits if p.held}
    with pytest.raises(ValueError, match="semaphore"):
        queen.lock(name, ttl_seconds=30, limit=2)


@covers("Lock(auto_renew)", "Lock(renew_every)", "Lock.on_lost")
async def test_a_lock_is_renewed_while_it_is_held_and_lost_when_it_is_not(queen, name):
    kept = queen.lock(f"{name}-kept", ttl_seconds=1, renew_every=0.2)
    lost = queen.lock(f"{name}-lost", ttl_seconds=1, auto_renew=False)
    reasons = []
    lost.on_lost(reasons.append)
    assert await kept.acquire() and await lost.acquire()
    first = kept.token
    await asyncio.wait_for(lost.lost.wait(), 10)
    assert reasons == ["expired"] and not lost.held
    assert await queen.lock(f"{name}-lost", ttl_seconds=30).acquire(wait=5), "what has expired is free"
    assert kept.held and kept.token > first
    assert not await queen.lock(f"{name}-kept", ttl_seconds=30).acquire()


@covers("TransactionBuilder.guard", "Lock.guard")
async def test_a_step_under_a_guard_commits_only_while_the_lock_is_held(queen, name):
    old = queen.lock(name, ttl_seconds=1, auto_renew=False)
    assert await old.acquire()
    stale = old.guard()

    def step(n):
        return queen.transaction().queue(f"{name}-out").push({"n": n})

    assert (await step(0).guard(old).commit())["success"] is True
    await asyncio.wait_for(old.lost.wait(), 10)
    new = queen.lock(name, ttl_seconds=30)
    assert await new.acquire(wait=5)
    # The old holder wakes and sends the step that it was about to send.
    late = step(1)
    late._kv_ops.append(stale)
    assert (await late.commit())["reason"] == "kv_precondition"
    with pytest.raises(LockNotHeldError):
        await step(2).guard(old).commit()
    assert (await step(3).guard(new).commit())["success"] is True
    assert numbers(await reader(queen, f"{name}-out", "check").pop()) == [0, 3]


@covers(
    "Locks.acquire", "Locks.acquire(ttl_seconds)", "Locks.acquire(ttl)", "Locks.acquire(owner)",
    "Locks.acquire(limit)", "Locks.renew", "Locks.renew(ttl_seconds)", "Locks.renew(ttl)", "Locks.renew(slot)",
    "Locks.renew(owner)", "Locks.release", "Locks.release(slot)", "Locks.batch",
)  # fmt: skip
async def test_an_operation_that_its_owner_sends_again_is_the_same(queen, name):
    locks = queen.locks
    first = await locks.acquire(name, ttl_seconds=30, owner="me")
    again = await locks.acquire(name, ttl=timedelta(seconds=30), owner="me")
    assert again and again["already"] is True and again["token"] == first["token"]
    assert (await locks.acquire(name, ttl_seconds=30, owner="you"))["reason"] == "held"
    renewed = await locks.renew(name, token=first["token"], ttl_seconds=30, owner="me")
    resent = await locks.renew(name, token=first["token"], ttl=timedelta(seconds=30), owner="me", slot=0)
    assert renewed and resent and resent["token"] > renewed["token"] > first["token"]
    stranger = await locks.renew(name, token=first["token"], ttl_seconds=30, owner="you")
    assert not stranger and stranger["holders"][0]["owner"] == "me"
    assert not await locks.release(name, token=first["token"])
    assert await locks.release(name, token=resent["token"], slot=0)
    two = [await locks.acquire(f"{name}-two", ttl_seconds=30, limit=2) for _ in range(3)]
    assert sorted(one["slot"] for one in two if one) == [0, 1] and not two[2]
    batch = [{"op": "get", "name": f"{name}-two"}, {"op": "acquire", "name": name, "ttlSeconds": 30}]
    assert [bool(one) for one in await locks.batch(batch)] == [True, True]
    for bad in ({"op": "get", "name": "a#b"}, {"op": "acquire", "name": "a"}, {"op": "steal", "name": "a"}):
        with pytest.raises(LockError):
            await locks.batch([bad])


@covers("Locks.release_all")
async def test_a_client_that_closes_gives_its_locks_back(queen, stack, name):
    async with queen_at(stack.url) as other:
        assert await other.lock(f"{name}-1", ttl_seconds=600).acquire()
        assert await other.locks.release_all() == 1
        assert await other.lock(f"{name}-2", ttl_seconds=600).acquire()
    for n in (1, 2):
        assert await queen.lock(f"{name}-{n}", ttl_seconds=600).acquire()
