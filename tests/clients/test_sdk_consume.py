"""The consume loop of Queen's Python SDK, with every option that it has."""

import asyncio
import contextlib
import time

import pytest

from conftest import queen_at
from consuming import drain, eventually, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401

# No consume loop of these tests runs for longer; one that should have ended fails its test.
SECONDS = 30


async def ends(consuming):
    return await asyncio.wait_for(consuming._execute(), SECONDS)


def consumer(queen, name, group="g"):
    """A consumer of everything, which looks for work often and never waits long."""
    return queen.queue(name).group(group).subscription_mode("all").timeout_millis(200)


def collecting():
    seen = []

    async def note(message):
        seen.append(message["data"]["n"])

    return seen, note


async def left(queen, name, group="g"):
    """What the group has not had: nothing is under lease when a loop has ended."""
    return [m["data"]["n"] for m in await reader(queen, name, group).pop()]


@covers("QueueBuilder.consume", "QueueBuilder.each", "QueueBuilder.limit")
async def test_messages_are_handled_one_by_one_up_to_a_limit(queen, name):
    await push(queen, name, range(8))
    seen, note = collecting()
    await ends(consumer(queen, name).batch(2).each().limit(6).consume(note))
    assert seen == list(range(6))
    assert await left(queen, name) == [6, 7]


async def test_a_handler_gets_a_batch_as_a_list_and_a_single_message_alone(queen, name):
    await push(queen, name, range(7))
    got = []

    async def note(given):
        got.append(given if isinstance(given, dict) else [m["data"]["n"] for m in given])

    await ends(consumer(queen, name).batch(5).limit(7).consume(note))
    assert got == [[0, 1, 2, 3, 4], [5, 6]]
    got.clear()
    await ends(consumer(queen, name, "one").batch(1).limit(2).consume(note))
    assert [message["data"]["n"] for message in got] == [0, 1]


@covers("QueueBuilder.concurrency")
async def test_workers_of_one_loop_share_the_partitions(queen, name):
    for partition in range(6):
        await push(queen, name, range(5), partition=f"p{partition}")
    inside, seen, together = set(), {}, asyncio.Event()

    async def handle(messages):
        inside.add(asyncio.current_task())
        if len(inside) == 3:
            together.set()
        # Until three of the workers have been in here at once, none of them goes on.
        await asyncio.wait_for(together.wait(), SECONDS)
        for message in messages:
            seen.setdefault(message["partition"], []).append(message["data"]["n"])

    await ends(consumer(queen, name).concurrency(3).batch(5).partitions(1).idle_millis(400).consume(handle))
    assert len(inside) == 3
    assert seen == {f"p{partition}": [0, 1, 2, 3, 4] for partition in range(6)}


@covers("QueueBuilder.idle_millis")
async def test_a_loop_ends_when_nothing_came_for_long_enough(queen, name):
    await push(queen, name, range(3))
    seen, note = collecting()
    begun = time.monotonic()
    await ends(consumer(queen, name).each().batch(10).idle_millis(500).consume(note))
    assert seen == [0, 1, 2] and time.monotonic() - begun >= 0.5


@covers("QueueBuilder.auto_ack")
async def test_without_auto_ack_the_handler_settles_its_messages(queen, name):
    await push(queen, name, range(4))
    seen = []

    async def settle(messages):
        seen.extend(m["data"]["n"] for m in messages)
        await queen.ack(messages[1], True, {"group": "g"})
        await queen.ack(messages[2], "retry", {"group": "g"})

    await ends(consumer(queen, name).auto_ack(False).batch(4).limit(4).consume(settle))
    assert seen == [0, 1, 2, 3]
    assert await left(queen, name) == [2, 3]


async def test_a_handler_that_fails_without_auto_ack_ends_the_loop(queen, name):
    await queen.queue(name).config({"lease_time": 1}).create()
    await push(queen, name, range(2))

    async def fail(messages):
        raise RuntimeError("connection timeout, says the handler")

    with pytest.raises(RuntimeError, match="says the handler"):
        await ends(consumer(queen, name).auto_ack(False).batch(2).consume(fail))
    # Nothing was given back: the messages come again when the lease is over.
    assert await left(queen, name) == []
    again = await eventually(lambda: reader(queen, name, "g").pop())
    assert [m["data"]["n"] for m in again] == [0, 1]


async def test_a_message_that_always_fails_is_dead_in_the_end_and_holds_up_nobody(queen, name):
    await queen.queue(name).config({"retry_limit": 2}).create()
    await push(queen, name, range(4))
    tries = []

    async def handle(message):
        tries.append(message["data"]["n"])
        if message["data"]["n"] == 1:
            raise RuntimeError("poison")

    await ends(consumer(queen, name).batch(10).each().idle_millis(400).consume(handle))
    assert tries == [0, 1, 1, 1, 2, 3]
    [letter] = (await queen.queue(name).dlq("g").get())["messages"]
    assert (letter["data"]["n"], letter["errorMessage"]) == (1, "poison")


@covers("ConsumeBuilder.on_success", "ConsumeBuilder.on_error")
async def test_callbacks_settle_the_messages_themselves(queen, name):
    await push(queen, name, range(4))
    heard = []

    async def handle(message):
        if message["data"]["n"] % 2:
            raise RuntimeError(f"odd {message['data']['n']}")
        return message["data"]["n"] * 10

    async def good(message, result):
        heard.append(result)
        await queen.ack(message, True, {"group": "g"})

    async def bad(message, error):
        heard.append(str(error))
        await queen.ack(message, "dlq", {"group": "g", "error": str(error)})

    consuming = consumer(queen, name).batch(1).limit(4).consume(handle).on_success(good).on_error(bad)
    await ends(consuming)
    assert heard == [0, "odd 1", 20, "odd 3"]
    assert len((await queen.queue(name).dlq("g").get())["messages"]) == 2


@covers("QueueBuilder.renew_lease", "QueueBuilder.renew_lease(interval_millis)")
async def test_a_lease_that_is_renewed_lasts_as_long_as_its_handler(queen, name):
    await queen.queue(name).config({"lease_time": 1}).create()
    await push(queen, name, range(2))
    stolen, handled = [], []

    async def handle(messages):
        until = time.monotonic() + 2
        while time.monotonic() < until:
            stolen.extend(await reader(queen, name, "g").pop())
            await asyncio.sleep(0.05)
        handled.extend(m["data"]["n"] for m in messages)

    await ends(consumer(queen, name).batch(2).limit(2).renew_lease(True, 200).consume(handle))
    assert stolen == [] and handled == [0, 1]
    assert await left(queen, name) == []


@covers("QueueBuilder.consume(signal)")
async def test_a_loop_ends_when_it_is_told_to(queen, name):
    await push(queen, name, range(3))
    enough, seen = asyncio.Event(), []

    async def handle(message):
        seen.append(message["data"]["n"])
        if len(seen) == 2:
            enough.set()

    await ends(consumer(queen, name).batch(10).each().consume(handle, signal=enough))
    assert seen == [0, 1]


async def test_a_loop_picks_up_what_comes_while_it_waits(queen, name):
    seen, note = collecting()
    loop = asyncio.create_task(
        ends(queen.queue(name).group("g").subscription_mode("all").batch(10).each().limit(20).consume(note))
    )
    for n in range(20):
        await push(queen, name, [n])
    await loop
    assert seen == list(range(20))


async def test_a_loop_that_does_not_wait_polls(queen, name):
    seen, note = collecting()
    loop = asyncio.create_task(ends(consumer(queen, name).wait(False).batch(5).each().limit(3).consume(note)))
    await push(queen, name, range(3))
    await loop
    assert seen == [0, 1, 2]


async def test_a_loop_over_one_partition_leaves_the_others(queen, name):
    for partition in ("a", "b"):
        await push(queen, name, range(2), partition=partition)
    seen, note = collecting()
    await ends(consumer(queen, name).partition("b").batch(5).each().limit(2).consume(note))
    assert seen == [0, 1]
    assert {m["partition"] for m in await reader(queen, name, "g").pop()} == {"a"}


async def test_a_loop_over_a_namespace_finds_all_its_queues(queen, name):
    for task in ("bill", "mail"):
        await queen.queue(f"{name}-{task}").namespace(name).task(task).create()
        await push(queen, f"{name}-{task}", [1])
    seen, note = collecting()
    builder = queen.queue().namespace(name).group("g").subscription_mode("all").wait(False).timeout_millis(5000)
    await ends(builder.batch(5).partitions(5).each().idle_millis(500).consume(note))
    assert seen == [1, 1]
    seen.clear()
    builder = queen.queue().namespace(name).task("mail").group("h").subscription_mode("all").wait(False)
    await ends(builder.timeout_millis(5000).batch(5).partitions(5).each().idle_millis(500).consume(note))
    assert seen == [1]


async def test_a_loop_that_conflates_handles_the_newest_message(queen, name):
    await push(queen, name, range(9))
    seen, note = collecting()
    await ends(consumer(queen, name).conflation(True).batch(10).each().idle_millis(300).consume(note))
    assert seen == [8]


async def test_a_loop_begins_where_its_subscription_says(queen, name):
    await push(queen, name, [0])
    seen, note = collecting()
    loop = asyncio.create_task(
        ends(
            queen.queue(name).group("g").subscription_mode("new").timeout_millis(200).each().limit(1).consume(note)
        )
    )

    async def joined():
        return any(
            one["name"] == "g" and one["queueName"] == name for one in await queen.admin.list_consumer_groups()
        )

    assert await eventually(joined)
    await push(queen, name, [1])
    await loop
    assert seen == [1]


async def test_a_message_can_be_traced_from_its_handler(queen, name):
    await push(queen, name, [0])
    answers = []

    async def handle(message):
        trace = {"traceName": [f"{name}-a", f"{name}-b"], "eventType": "info", "data": {"step": 1}}
        answers.append(await message["trace"](trace))

    await ends(consumer(queen, name).batch(1).limit(1).consume(handle))
    assert answers[0]["success"] is True
    found = await queen.admin.get_traces_by_name(f"{name}-a")
    assert [trace["data"] for trace in found["traces"]] == [{"step": 1}]


@covers("QueueBuilder.supervision", "QueueBuilder.supervision(config)")
async def test_a_loop_under_supervision_says_how_it_is_doing(queen, name):
    """The SDK reports into the server's key-value store; the loop itself must work in any case."""
    await push(queen, name, range(3))
    seen, note = collecting()
    await ends(consumer(queen, name).supervision({"group": "tests"}).batch(10).each().limit(3).consume(note))
    assert seen == [0, 1, 2]
    rows = await queen.kv.list_all("queen-supervisor", "tests/")
    assert rows, "a loop that was watched leaves its last status"


async def test_a_loop_goes_on_when_its_server_comes_back(own_stack, name):
    """Killed while the loop waits, and started again: what was pushed before and after is handled once each."""
    server = own_stack().start()
    async with queen_at(server.url, retry_attempts=10, retry_delay_millis=20) as queen:
        await push(queen, name, range(3))
        seen, note = collecting()
        enough = asyncio.Event()
        loop = asyncio.create_task(ends(consumer(queen, name).batch(10).each().consume(note, signal=enough)))

        async def handled(count):
            return len(seen) >= count

        assert await eventually(lambda: handled(3))
        server.kill()
        server.start()
        await push(queen, name, range(3, 6))
        assert await eventually(lambda: handled(6))
        enough.set()
        await loop
    assert seen[:3] == [0, 1, 2] and sorted(set(seen)) == [0, 1, 2, 3, 4, 5]


async def test_nothing_is_lost_or_handled_twice_by_loops_that_race(queen, stack, name):
    async with contextlib.AsyncExitStack() as clients:
        others = [await clients.enter_async_context(queen_at(stack.url)) for _ in range(3)]
        for partition in range(8):
            await push(queen, name, range(25), partition=f"p{partition}")
        seen = []

        async def note(messages):
            seen.extend((m["partition"], m["data"]["n"]) for m in messages)

        await asyncio.gather(
            *(ends(consumer(one, name).batch(10).partitions(2).idle_millis(500).consume(note)) for one in others)
        )
    assert len(seen) == len(set(seen)) == 200
    for partition in range(8):
        assert [n for where, n in seen if where == f"p{partition}"] == list(range(25))
    assert await drain(queen, name, "check", want=200)
