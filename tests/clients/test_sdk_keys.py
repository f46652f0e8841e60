"""Keys with values, and timers, through Queen's Python SDK: alone, and in the same commit as messages."""

import asyncio
import time
from datetime import datetime, timedelta, timezone

import pytest
from queen import KvError, TimerError

from consuming import eventually, numbers, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401

HOUR = timedelta(hours=1)


def space(name):
    """A namespace of a test's own: lower case, and short enough."""
    return name.replace("_", "-").lower()[-60:].lstrip("-._")


@covers(
    "Queen.kv", "KV.put", "KV.get", "KV.delete", "KV.put(expect)", "KV.put(ttl_seconds)", "KV.put(ttl)",
    "KV.put(until)", "KV.put(forever)", "KV.delete(expect)",
)  # fmt: skip
async def test_a_value_is_written_under_every_expiry_and_under_its_version(queen, name):
    ns, keys = space(name), queen.kv
    assert not await keys.get(ns, "absent")
    made = await keys.put(ns, "a", {"n": [1, None]}, ttl_seconds=60, expect=0)
    assert made and made["value"] == {"n": [1, None]}
    assert not await keys.put(ns, "a", 2, ttl=HOUR, expect=made["version"] + 1)
    moved = await keys.put(ns, "a", None, ttl=HOUR, expect=made["version"])
    assert moved["version"] > made["version"]
    found = await keys.get(ns, "a")
    assert found and found["value"] is None, "a null is a value"
    until = datetime.now(timezone.utc) + HOUR
    dated = await keys.put(ns, "a", 3, until=until)
    ends = datetime.fromisoformat(dated["expiresAt"])
    assert abs((ends - until).total_seconds()) <= 60
    kept = await keys.put(ns, "a", 4, forever=True)
    assert "expiresAt" not in kept
    lost = await keys.delete(ns, "a", expect=made["version"])
    assert not lost and lost["reason"] == "version" and lost["value"] == 4
    assert await keys.delete(ns, "a", expect=kept["version"])
    assert (await keys.delete(ns, "a"))["reason"] == "absent"


async def test_a_value_ends_when_its_time_is_over(queen, name):
    ns = space(name)
    made = await queen.kv.put(ns, "a", 1, ttl_seconds=1)
    assert await queen.kv.get(ns, "a")

    async def gone():
        return not await queen.kv.get(ns, "a")

    assert await eventually(gone)
    again = await queen.kv.put_if_absent(ns, "a", 2, ttl_seconds=60)
    assert again and again["version"] > made["version"]


@covers(
    "KV.put_if_absent", "KV.put_if_absent(ttl_seconds)", "KV.put_if_absent(ttl)", "KV.put_if_absent(until)",
    "KV.put_if_absent(forever)", "KV.once", "KV.once(ttl_seconds)", "KV.once(ttl)", "KV.once(until)",
    "KV.once(forever)", "KV.once(value)",
)  # fmt: skip
async def test_one_of_many_is_the_first(queen, name):
    ns, keys = space(name), queen.kv
    until = datetime.now(timezone.utc) + HOUR
    expiries = ({"ttl_seconds": 60}, {"ttl": HOUR}, {"until": until}, {"forever": True})
    for n, expiry in enumerate(expiries):
        won = await asyncio.gather(*(keys.put_if_absent(ns, f"p{n}", who, **expiry) for who in range(6)))
        [winner] = [one for one in won if one]
        assert {one["reason"] for one in won if not one} == {"exists"}
        assert {one["value"] for one in won} == {winner["value"]}, "who lost learns who won"
        won = await asyncio.gather(*(keys.once(ns, f"o{n}", value=who, **expiry) for who in range(6)))
        assert sum(map(bool, won)) == 1


@covers(
    "KV.incr", "KV.incr(delta)", "KV.incr(min)", "KV.incr(max)", "KV.incr(ttl_seconds)", "KV.incr(ttl)",
    "KV.incr(until)", "KV.incr(forever)",
)  # fmt: skip
async def test_a_counter_counts_within_its_bounds(queen, name):
    ns, keys = space(name), queen.kv
    admitted = await asyncio.gather(*(keys.incr(ns, "quota", ttl_seconds=60, max=5) for _ in range(8)))
    assert sorted(one["value"] for one in admitted if one) == [1, 2, 3, 4, 5]
    assert {(one["reason"], one["value"]) for one in admitted if not one} == {("limit", 5)}
    assert (await keys.incr(ns, "quota", delta=-3, ttl=HOUR))["value"] == 2
    assert not await keys.incr(ns, "quota", delta=-3, min=0, forever=True)
    until = datetime.now(timezone.utc) + HOUR
    assert not await keys.incr(ns, "burst", delta=10, max=5, until=until)
    assert not await keys.get(ns, "burst")
    await keys.put(ns, "text", "x", ttl_seconds=60)
    assert (await keys.incr(ns, "text", ttl_seconds=60))["reason"] == "type"


@covers(
    "KV.get_many", "KV.get_prefix", "KV.get_prefix(after)", "KV.get_prefix(limit)", "KV.get_prefix(keys_only)",
    "KV.list_all", "KV.list_all(limit)", "KV.list_all(keys_only)", "KV.list_all(max_rows)",
)  # fmt: skip
async def test_keys_are_read_together_and_by_prefix(queen, name):
    ns, keys = space(name), queen.kv
    for n in range(7):
        await keys.put(ns, f"page:{n}", n, ttl_seconds=60)
    await keys.put(ns, "other", 1, ttl_seconds=60)
    many = await keys.get_many(ns, ["page:3", "absent", "other"])
    assert [row["key"] for row in many["rows"]] == ["page:3", "other"] and many["missing"] == ["absent"]
    first = await keys.get_prefix(ns, "page:", limit=3)
    assert [row["value"] for row in first["rows"]] == [0, 1, 2] and first["truncated"] is True
    rest = await keys.get_prefix(ns, "page:", after=first["nextAfter"], limit=10, keys_only=True)
    assert [row["key"] for row in rest["rows"]] == [f"page:{n}" for n in range(3, 7)]
    assert rest["truncated"] is False and not any("value" in row for row in rest["rows"])
    assert len(await keys.list_all(ns, "page:", limit=2)) == 7
    assert len(await keys.list_all(ns, "page:", limit=2, keys_only=True, max_rows=3)) == 3


@covers(
    "KV.batch", "KV.check", "KV.check(expect)", "KV.check(required)", "KV.put(required)", "KV.put_if_absent(required)",
    "KV.delete(required)", "KV.incr(required)",
)  # fmt: skip
async def test_a_batch_is_one_step_and_a_required_operation_is_its_gate(queen, name):
    ns, keys = space(name), queen.kv
    op = keys.op
    held = await keys.put(ns, "lock", "mine", ttl_seconds=60)
    results = await keys.batch(
        [
            op.check(ns, "lock", expect=held["version"], required=True),
            op.put(ns, "a", 1, ttl_seconds=60),
            op.incr(ns, "a", delta=2, ttl_seconds=60),
            op.get(ns, "a"),
        ]
    )
    assert [result["op"] for result in results] == ["check", "put", "incr", "get"]
    assert results[3]["value"] == 3, "an operation sees what stands before it"
    assert await keys.check(ns, "lock", expect=held["version"])
    assert not await keys.check(ns, "lock", expect=held["version"] + 1)
    lost = op.check(ns, "lock", expect=held["version"] + 1, required=True)
    assert await keys.batch([op.put(ns, "a", 9, ttl_seconds=60), lost]) == []
    assert (await keys.get(ns, "a"))["value"] == 3, "nothing of the batch happened"
    assert await keys.check(ns, "lock", expect=held["version"], required=True)
    assert await keys.put(ns, "b", 1, ttl_seconds=60, required=True)
    assert await keys.put_if_absent(ns, "c", 1, ttl_seconds=60, required=True)
    assert await keys.incr(ns, "b", ttl_seconds=60, required=True)
    assert await keys.delete(ns, "b", required=True)


async def test_what_a_key_may_not_be_is_refused(queen, name):
    for ns, key, value in (("Upper Case", "k", 1), (space(name), "k" * 600, 1), (space(name), "k", "x" * 70_000)):
        with pytest.raises(KvError) as refused:
            await queen.kv.put(ns, key, value, ttl_seconds=60)
        assert refused.value.response.status_code == 400


@covers(
    "TransactionBuilder.kv", "TransactionKvBuilder.get", "TransactionKvBuilder.get_many", "TransactionKvBuilder.put",
    "TransactionKvBuilder.put_if_absent", "TransactionKvBuilder.delete", "TransactionKvBuilder.check",
    "TransactionKvBuilder.incr", "TransactionKvBuilder.get_prefix",
)  # fmt: skip
async def test_keys_change_together_with_messages(queen, name):
    ns = space(name)
    await queen.kv.put(ns, "old", 1, ttl_seconds=60)
    await push(queen, name, [1])
    [message] = await reader(queen, name, "g").pop()
    bundle = queen.transaction().ack(message, context={"consumer_group": "g"}).queue(f"{name}-out").push({"n": 1})
    bundle = bundle.kv.get(ns, "old").kv.get_many(ns, ["old", "absent"]).kv.put(ns, "new", 2, ttl_seconds=60)
    bundle = bundle.kv.put_if_absent(ns, "marker", True, ttl_seconds=60).kv.delete(ns, "old")
    bundle = bundle.kv.check(ns, "absent", expect=0).kv.incr(ns, "count", delta=5, ttl_seconds=60)
    with pytest.raises(ValueError, match="getPrefix"):
        bundle.kv.get_prefix(ns, "p")
    done = await bundle.commit()
    assert done["success"] is True
    riders = [result for result in done["results"] if result["type"] == "kv"]
    assert [rider["opIndex"] for rider in riders] == list(range(7))
    assert riders[0]["value"] == 1 and riders[1]["missing"] == ["absent"] and riders[6]["value"] == 5
    assert numbers(await reader(queen, f"{name}-out", "check").pop()) == [1]
    assert await reader(queen, name, "g").pop() == []
    assert not await queen.kv.get(ns, "old") and (await queen.kv.get(ns, "new"))["value"] == 2


@covers(
    "TransactionBuilder.once", "TransactionBuilder.once(ttl_seconds)", "TransactionBuilder.once(ttl)",
    "TransactionBuilder.once(until)", "TransactionBuilder.once(forever)", "TransactionBuilder.once(value)",
)  # fmt: skip
async def test_work_that_was_done_before_is_not_done_again(queen, name):
    ns = space(name)
    until = datetime.now(timezone.utc) + HOUR
    for n, expiry in enumerate(({"ttl_seconds": 60}, {"ttl": HOUR}, {"until": until}, {"forever": True})):
        for worker in (1, 2):
            await push(queen, name, [n])
            [message] = await reader(queen, name, "g").pop()
            bundle = queen.transaction().once(ns, f"order:{n}", value={"by": worker}, **expiry)
            bundle = bundle.ack(message, context={"consumer_group": "g"}).queue(f"{name}-out").push({"n": n})
            done = await bundle.commit()
            if worker == 1:
                assert done["success"] is True
            else:
                # The second result is that of the marker: it stands behind the acknowledgement and the push.
                assert (done["reason"], done["kvReason"], done["failedIndex"]) == ("kv_precondition", "exists", 2)
                assert done["value"] == {"by": 1}
                assert (await queen.ack(message, True, {"group": "g"}))["success"] is True
    assert numbers(await reader(queen, f"{name}-out", "check").pop()) == [0, 1, 2, 3]


async def delivered(queen, queue, want=1):
    messages = []

    async def look():
        messages.extend(await reader(queen, queue, "timers", partitions=8).pop())
        return len(messages) >= want

    assert await eventually(look), f"{queue} got {len(messages)} of {want}"
    return messages


@covers(
    "Queen.timers", "Timers.schedule", "Timers.schedule(delay_ms)", "Timers.schedule(delay)",
    "Timers.schedule(partition)", "Timers.schedule(txn)", "Timers.peek",
)  # fmt: skip
async def test_a_timer_becomes_a_message_and_not_before_its_time(queen, name):
    begun = time.time()
    promised = await queen.timers.schedule(name, "k", {"n": 1}, delay_ms=700, partition="eu", txn=f"{name}-1")
    assert promised["status"] == "scheduled" and promised["txn"] == f"{name}-1"
    waiting = await queen.timers.peek(name, "k")
    assert waiting["found"] is True and waiting["messageId"] == promised["messageId"]
    [message] = await delivered(queen, name)
    assert time.time() - begun >= 0.7
    assert (message["data"], message["partition"]) == ({"n": 1}, "eu")
    assert (message["id"], message["transactionId"]) == (promised["messageId"], promised["txn"])
    assert (await queen.timers.peek(name, "k"))["found"] is False
    soon = await queen.timers.schedule(name, "at once", "text", delay=timedelta(milliseconds=-5))
    assert soon["status"] == "scheduled"
    [message] = await delivered(queen, name)
    assert message["data"] == "text"


@covers(
    "Timers.reschedule", "Timers.reschedule(delay_ms)", "Timers.reschedule(delay)", "Timers.reschedule(partition)",
    "Timers.reschedule(txn)", "Timers.cancel", "Timers.cancel(txn)", "Timers.list", "Timers.list(after)",
    "Timers.list(limit)", "Timers.list_all", "Timers.list_all(limit)", "Timers.list_all(max_rows)",
)  # fmt: skip
async def test_timers_are_moved_listed_and_cancelled(queen, name):
    timers = queen.timers
    for n in range(5):
        await timers.schedule(name, f"order/{n}", {"n": n}, delay=HOUR)
    moved = await timers.reschedule(name, "order/0", {"n": 10}, delay_ms=300, partition="p", txn=f"{name}-moved")
    assert moved["status"] == "rescheduled"
    again = await timers.reschedule(name, "order/1", {"n": 11}, delay=HOUR)
    assert again["status"] == "rescheduled"
    first = await timers.list(name, limit=2)
    assert len(first["rows"]) == 2 and first["truncated"] is True
    rest = await timers.list(name, after=first["nextAfter"], limit=10)
    assert rest["truncated"] is False
    assert len(await timers.list_all(name, limit=2, max_rows=3)) == 3
    cancelled = await timers.cancel(name, "order/2", txn="x")
    assert cancelled["ok"] is True and cancelled["status"] == "cancelled"
    absent = await timers.cancel(name, "order/2", txn="x")
    assert (absent["ok"], absent["status"], absent["txn"]) == (False, "absent", "x")
    [message] = await delivered(queen, name)
    assert message["data"] == {"n": 10}, "the time and the payload are the new ones"
    assert {row["timerKey"] for row in await timers.list_all(name)} == {"order/1", "order/3", "order/4"}


@covers(
    "Queen.timer", "TimerBuilder.key", "TimerBuilder.payload", "TimerBuilder.payload(zstd)", "TimerBuilder.after_ms",
    "TimerBuilder.after", "TimerBuilder.partition", "TimerBuilder.txn", "TimerBuilder.schedule",
    "TimerBuilder.reschedule", "TimerBuilder.cancel", "Timers.timer", "Timers.batch", "Timers.schedule(payload_zstd)",
    "Timers.reschedule(payload_zstd)",
)  # fmt: skip
async def test_timers_are_built_step_by_step(queen, name):
    packed = compressed(b'{"n":7}')
    timer = queen.timer(name).key("a").payload(packed, zstd=True).after_ms(200).partition("p").txn(f"{name}-a")
    assert (await timer.schedule())["status"] == "scheduled"
    [message] = await delivered(queen, name)
    assert message["data"] == {"n": 7} and message["transactionId"] == f"{name}-a"
    built = queen.timers.timer(name).key("b").payload({"n": 1}).after(HOUR)
    assert (await built.schedule())["status"] == "scheduled"
    assert (await built.reschedule())["status"] == "rescheduled"
    assert (await queen.timer(name).key("b").cancel())["status"] == "cancelled"
    options = {"delay_ms": 3_600_000, "payload_zstd": True}
    assert (await queen.timers.schedule(name, "c", packed, **options))["status"] == "scheduled"
    assert (await queen.timers.reschedule(name, "c", packed, **options))["status"] == "rescheduled"
    cancel = [{"op": "cancel", "queue": name, "timerKey": key} for key in ("c", "d")]
    assert [one["status"] for one in await queen.timers.batch(cancel)] == ["cancelled", "absent"]


def compressed(raw):
    from queen.http.zstd import compress

    return compress(raw)


async def test_a_payload_that_is_no_json_is_refused_when_it_is_scheduled(queen, name):
    for payload in (b"not json", b'"\\ud800"', b"\xff"):
        with pytest.raises(TimerError) as refused:
            await queen.timers.schedule(name, "k", payload, delay_ms=10)
        assert refused.value.response.status_code == 400


@covers(
    "TransactionBuilder.timer", "TransactionTimerBuilder.key", "TransactionTimerBuilder.payload",
    "TransactionTimerBuilder.payload(zstd)", "TransactionTimerBuilder.after_ms", "TransactionTimerBuilder.after",
    "TransactionTimerBuilder.partition", "TransactionTimerBuilder.txn", "TransactionTimerBuilder.schedule",
    "TransactionTimerBuilder.reschedule", "TransactionTimerBuilder.cancel",
)  # fmt: skip
async def test_timers_of_a_transaction_wait_for_its_commit(queen, name):
    await push(queen, name, [1])
    [message] = await reader(queen, name, "g").pop()
    await queen.timers.schedule(f"{name}-late", "cancelled", {"n": 0}, delay=HOUR)

    def bundle(transaction):
        timer = transaction.timer(f"{name}-late").key("a").payload(compressed(b'{"n":1}'), zstd=True)
        transaction = timer.after_ms(100).partition("p").txn(f"{name}-a").schedule()
        transaction = transaction.timer(f"{name}-late").key("b").payload({"n": 2}).after(HOUR).reschedule()
        return transaction.timer(f"{name}-late").key("cancelled").cancel()

    refused = bundle(queen.transaction().once(space(name), "k", ttl_seconds=60, value=1))
    await queen.kv.put(space(name), "k", 0, ttl_seconds=60)
    assert (await refused.commit())["reason"] == "kv_precondition"
    assert len(await queen.timers.list_all(f"{name}-late")) == 1, "nothing was scheduled or cancelled"
    done = await bundle(queen.transaction().ack(message, context={"consumer_group": "g"})).commit()
    statuses = [result["status"] for result in done["results"] if result["type"] == "timer"]
    assert statuses == ["scheduled", "scheduled", "cancelled"]
    [late] = await delivered(queen, f"{name}-late")
    assert (late["data"], late["transactionId"]) == ({"n": 1}, f"{name}-a")


async def test_timers_outlive_a_kill(own_stack, name):
    from conftest import queen_at

    server = own_stack().start()
    async with queen_at(server.url, retry_attempts=5, retry_delay_millis=20) as queen:
        promised = await queen.timers.schedule(name, "k", {"n": 1}, delay_ms=300)
        server.kill()
        server.start()
        [message] = await delivered(queen, name)
        assert message["id"] == promised["messageId"]
