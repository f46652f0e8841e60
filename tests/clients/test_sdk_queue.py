"""Queues through Queen's Python SDK: configuration, pushing and its callbacks, buffers, every form of pop, dead
letters, and reads by offset."""

import asyncio
import time
from datetime import datetime, timezone

import pytest
from queen import BUFFER_DEFAULTS

from conftest import queen_at
from consuming import drain, eventually, numbers, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401


async def options_of(queen, name):
    return (await queen.admin.get_queue(name))["options"]


@covers(
    "Queen.queue", "Queen.queue(name)", "QueueBuilder.create", "QueueBuilder.config", "QueueBuilder.namespace",
    "QueueBuilder.task", "OperationBuilder.on_success", "Admin.get_queue", "Queen.admin",
    "QueueBuilder.config{lease_time}", "QueueBuilder.config{retry_limit}", "QueueBuilder.config{priority}",
    "QueueBuilder.config{delayed_processing}", "QueueBuilder.config{window_buffer}", "QueueBuilder.config{max_size}",
    "QueueBuilder.config{retention_seconds}", "QueueBuilder.config{completed_retention_seconds}",
    "QueueBuilder.config{encryption_enabled}",
)  # fmt: skip
async def test_every_option_of_a_queue_is_kept(queen, name):
    options = {
        "lease_time": 7, "retry_limit": 5, "priority": 3, "delayed_processing": 1, "window_buffer": 2, "max_size": 9,
        "retention_seconds": 3600, "completed_retention_seconds": 60, "encryption_enabled": True,
    }  # fmt: skip
    answers = []

    async def note(answer):
        answers.append(answer)

    created = await queen.queue(name).namespace("shop").task("bill").config(options).create().on_success(note)
    assert answers == [created] and created["configured"] is True
    assert (created["namespace"], created["task"]) == ("shop", "bill")
    kept = await options_of(queen, name)
    camel = {"".join(w.title() if i else w for i, w in enumerate(key.split("_"))): v for key, v in options.items()}
    assert {key: kept[key] for key in camel} == camel


@covers("OperationBuilder.on_error", "QueueBuilder.delete")
async def test_a_queue_is_deleted_with_what_it_holds_and_a_refusal_reaches_the_callback(queen, name):
    await push(queen, name, range(3))
    assert (await queen.queue(name).delete())["deleted"] is True
    assert (await queen.queue(name).delete())["existed"] is False
    assert await reader(queen, name, "g").pop() == []
    refusals = []

    async def note(error):
        refusals.append(str(error))

    refused = await queen.queue(name).config({"dedup_window_seconds": "long"}).create().on_error(note)
    assert refused["success"] is False and len(refusals) == 1, (refused, refusals)


@covers(
    "QueueBuilder.push", "QueueBuilder.partition", "PushBuilder.on_success", "PushBuilder.on_duplicate",
    "PushBuilder.on_error",
)  # fmt: skip
async def test_a_push_tells_its_callbacks_what_became_of_each_message(queen, name):
    heard = {"stored": [], "again": [], "refused": []}

    async def stored(items):
        heard["stored"] += [item["transactionId"] for item in items]

    async def again(items, error):
        heard["again"] += [item["transactionId"] for item in items]

    async def refused(items, error):
        heard["refused"] += [item["transactionId"] for item in items]

    def pushing(*ids):
        items = [{"data": {"id": one}, "transactionId": one} for one in ids]
        return (
            queen.queue(name).partition("p").push(items).on_success(stored).on_duplicate(again).on_error(refused)
        )

    await pushing("a", "b")
    answers = await pushing("b", "c")
    assert [answer["status"] for answer in answers] == ["duplicate", "queued"]
    assert heard == {"stored": ["a", "b", "c"], "again": ["b"], "refused": []}
    too_long = queen.queue(name).partition("p" * 600).push({"data": {"n": 1}, "transactionId": "d"})
    await too_long.on_success(stored).on_error(refused)
    assert heard["refused"] == ["d"] and heard["stored"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"data": None}, None),
        ({"data": [1, "two", {"three": 3.5}]}, [1, "two", {"three": 3.5}]),
        ({"payload": "text"}, "text"),
        ({"n": 1, "ä": "ß\u2028"}, {"n": 1, "ä": "ß\u2028"}),
        ({"data": False, "traceId": "01a22ee1-f07a-7000-8000-0002d1e6b317"}, False),
    ],
)
async def test_a_push_takes_a_payload_in_every_form(queen, name, given, stored):
    await queen.queue(name).push(given)
    [message] = await reader(queen, name, "g").pop()
    assert message["data"] == stored


@covers(
    "QueueBuilder.buffer", "QueueBuilder.buffer{message_count}", "QueueBuilder.buffer{time_millis}",
    "QueueBuilder.buffer{max_size}", "QueueBuilder.buffer{retry_delay_millis}", "Queen.get_buffer_stats",
)  # fmt: skip
async def test_a_buffer_is_sent_when_it_is_full(queen, name):
    options = {"message_count": 10, "time_millis": 600_000, "max_size": 40, "retry_delay_millis": 50}
    for n in range(9):
        answer = await queen.queue(name).buffer(options).push({"data": {"n": n}})
        assert answer == {"buffered": True, "count": 1}
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 9
    assert await reader(queen, name, "g").pop() == [], "nine wait for a time that does not come"
    await queen.queue(name).buffer(options).push({"data": {"n": 9}})
    assert numbers(await drain(queen, name, "g", want=10)) == list(range(10))
    assert await eventually(lambda: at_rest(queen, 0)), queen.get_buffer_stats()
    # A producer that is faster than its buffer is held up, and loses nothing.
    await queen.queue(name).buffer(options).push([{"data": {"n": n}} for n in range(10, 210)])
    assert queen.get_buffer_stats()["totalBufferedMessages"] <= 40
    await queen.flush_all_buffers()
    assert numbers(await drain(queen, name, "g", want=200)) == list(range(10, 210))


async def at_rest(queen, waiting):
    return queen.get_buffer_stats()["totalBufferedMessages"] == waiting


async def test_a_buffer_is_sent_when_its_time_is_over(queen, name):
    begun = time.monotonic()
    await queen.queue(name).buffer({"message_count": 1000, "time_millis": 300}).push({"data": {"n": 1}})
    assert numbers(await drain(queen, name, "g", want=1)) == [1]
    assert time.monotonic() - begun >= 0.3
    assert await eventually(lambda: at_rest(queen, 0))


@covers("QueueBuilder.flush_buffer", "Queen.flush_all_buffers")
async def test_buffers_are_sent_when_they_are_told_to(queen, name):
    never = {"message_count": 1000, "time_millis": 600_000}
    for partition in ("a", "b"):
        for n in range(3):
            await queen.queue(name).partition(partition).buffer(never).push({"data": {"n": n}})
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 6
    await queen.queue(name).partition("a").flush_buffer()
    assert numbers(await reader(queen, name, "g", partition="a").pop()) == [0, 1, 2]
    assert await reader(queen, name, "g", partition="b").pop() == []
    await queen.flush_all_buffers()
    assert numbers(await reader(queen, name, "g", partition="b").pop()) == [0, 1, 2]


@covers("Queen.close")
async def test_closing_a_client_sends_what_it_has_buffered(queen, stack, name):
    async with queen_at(stack.url) as other:
        await other.queue(name).buffer({"message_count": 1000, "time_millis": 600_000}).push({"data": {"n": 1}})
    assert numbers(await reader(queen, name, "g").pop()) == [1]


async def test_a_buffer_outlives_a_server_that_is_away(own_stack, name):
    """Nothing of a buffer is dropped while the server is down, nothing is sent twice, and the order holds."""
    server = own_stack().start()
    options = {"message_count": 5, "time_millis": 100, "retry_delay_millis": 50}
    async with queen_at(server.url, retry_attempts=1, retry_delay_millis=10) as queen:
        await queen.queue(name).buffer(options).push([{"data": {"n": n}} for n in range(5)])
        await drain(queen, name, "first", want=5)
        server.kill()
        for n in range(5, 12):
            await queen.queue(name).buffer(options).push({"data": {"n": n}})
        server.start()
        assert numbers(await drain(queen, name, "g", want=12)) == list(range(12))
        assert await eventually(lambda: at_rest(queen, 0))
        assert await reader(queen, name, "g").pop() == []


@covers(
    "QueueBuilder.pop", "QueueBuilder.group", "QueueBuilder.subscription_mode", "QueueBuilder.batch",
    "QueueBuilder.partitions", "QueueBuilder.wait",
)  # fmt: skip
async def test_a_pop_takes_a_batch_from_as_many_partitions_as_it_is_told(queen, name):
    for partition in ("a", "b", "c"):
        await push(queen, name, range(4), partition=partition)

    def popping(partitions, batch):
        return (
            queen.queue(name).group("g").subscription_mode("all").partitions(partitions).batch(batch).wait(False)
        )

    one = await popping(1, 100).pop()
    assert numbers(one) == [0, 1, 2, 3] and len({m["partition"] for m in one}) == 1
    rest = await popping(5, 6).pop()
    assert len(rest) == 6 and len({m["partition"] for m in rest}) == 2, "the batch is shared by the partitions"
    assert len({m["leaseId"] for m in rest}) == 1
    for partition in {m["partition"] for m in rest}:
        found = [m["data"]["n"] for m in rest if m["partition"] == partition]
        assert found == list(range(len(found)))


@covers("QueueBuilder.timeout_millis")
async def test_a_waiting_pop_returns_when_a_message_comes_or_its_time_is_over(queen, name):
    await queen.queue(name).create()
    begun = time.monotonic()
    popping = queen.queue(name).group("g").subscription_mode("all").wait(True)
    assert await popping.timeout_millis(400).pop() == []
    assert time.monotonic() - begun >= 0.4
    waiting = asyncio.create_task(popping.timeout_millis(20_000).pop())
    await push(queen, name, [1])
    assert numbers(await asyncio.wait_for(waiting, 10)) == [1]


@covers("QueueBuilder.pop_result", "QueueBuilder.autopilot", "QueueBuilder.autopilot(enabled)")
async def test_autopilot_leaves_the_size_of_a_pop_to_the_server(queen, name):
    await push(queen, name, range(30))

    def popping(group):
        return queen.queue(name).group(group).subscription_mode("all").wait(False)

    sized = await popping("a").autopilot(True).pop_result()
    assert numbers(sized.messages) == list(range(30))
    fixed = await popping("b").autopilot(False).pop_result()
    assert numbers(fixed.messages) == [0] and fixed.autopilot is None, "without it the SDK asks for one message"


@covers("QueueBuilder.commit_on_delivery", "QueueBuilder.commit_on_delivery(enabled)")
async def test_a_pop_that_commits_on_delivery_leaves_nothing_to_acknowledge(queen, name):
    await push(queen, name, range(3))
    popped = await reader(queen, name, "g", batch=2).commit_on_delivery(True).pop()
    assert numbers(popped) == [0, 1] and {m["leaseId"] for m in popped} == {""}
    assert numbers(await reader(queen, name, "g").pop()) == [2]
    with pytest.raises(ValueError, match="pop"):
        queen.queue(name).commit_on_delivery().consume(lambda message: None)


@covers("QueueBuilder.conflation", "QueueBuilder.conflation(enabled)")
async def test_a_group_that_conflates_gets_the_newest_message(queen, name):
    await push(queen, name, range(5))
    [newest] = await reader(queen, name, "g").conflation(True).pop()
    assert newest["data"]["n"] == 4
    assert (await queen.ack(newest, True, {"group": "g"}))["success"] is True
    assert await reader(queen, name, "g").conflation(True).pop() == []
    assert len(await reader(queen, name, "other").pop()) == 5
    with pytest.raises(Exception, match="consumerGroup"):
        await queen.queue(name).conflation(True).wait(False).pop()


@covers("QueueBuilder.subscription_from")
async def test_a_new_group_begins_now_or_at_a_time(queen, name):
    await push(queen, name, range(2))
    now = queen.queue(name).group("now").subscription_from("now").batch(10).wait(False)
    assert await now.pop() == []
    # The next message's time must differ in the milliseconds that a subscription names.
    [last] = (await reader(queen, name, "look").pop())[-1:]
    n, newest = 2, last
    while newest["createdAt"][:23] <= last["createdAt"][:23]:
        await push(queen, name, [n])
        [newest] = (await reader(queen, name, f"look-{n}").pop())[-1:]
        n += 1
    assert numbers(await now.pop()) == list(range(2, n))
    since = queen.queue(name).group("since").subscription_from(newest["createdAt"]).batch(10).wait(False)
    assert numbers(await since.pop()) == [n - 1]


async def test_queues_are_discovered_by_namespace_and_task(queen, name):
    for task in ("bill", "mail"):
        await queen.queue(f"{name}-{task}").namespace(name).task(task).create()
        await push(queen, f"{name}-{task}", [1])

    async def found(group, **where):
        builder = queen.queue().group(group).subscription_mode("all").batch(10).partitions(10).wait(False)
        for option, value in where.items():
            builder = getattr(builder, option)(value)
        return len(await builder.pop())

    assert await found("by-task", namespace=name, task="mail") == 1
    assert await found("all", namespace=name) == 2
    with pytest.raises(ValueError, match="namespace"):
        await queen.queue()._build_pop_path()


@covers("Queen.ack", "Queen.ack(status)", "Queen.ack(context)", "Queen.renew")
async def test_acknowledgements_say_completed_failed_retry_or_dead(queen, name):
    await queen.queue(name).config({"retry_limit": 1}).create()
    await push(queen, name, range(4))
    context = {"group": "g", "error": "no"}
    first = await reader(queen, name, "g", batch=1).pop()
    assert (await queen.ack(first[0], "retry", context))["success"] is True
    again = await reader(queen, name, "g", batch=1).pop()
    assert numbers(again) == [0]
    assert (await queen.ack(again, True, {"group": "g"}))["success"] is True
    [dead] = await reader(queen, name, "g", batch=1).pop()
    assert (await queen.ack(dead, "dlq", context))["dlq"] is True
    [failed] = await reader(queen, name, "g", batch=1).pop()
    assert (await queen.ack(failed, False, context))["dlq"] is False
    [failed] = await reader(queen, name, "g", batch=1).pop()
    assert failed["data"]["n"] == 2 and (await queen.ack(failed, False, context))["dlq"] is True
    [held] = await reader(queen, name, "g", batch=1).pop()
    assert held["data"]["n"] == 3
    for named in (held, held["leaseId"], [held]):
        renewed = await queen.renew(named)
        assert (renewed[0] if isinstance(renewed, list) else renewed)["success"] is True
    assert (await queen.ack(held, True, {"group": "g"}))["success"] is True
    assert (await queen.renew(held))["success"] is False, "the lease ended with the acknowledgement"


@covers(
    "QueueBuilder.dlq", "QueueBuilder.dlq(consumer_group)", "DLQBuilder.get", "DLQBuilder.limit", "DLQBuilder.offset",
    "DLQBuilder.from_", "DLQBuilder.to", "Admin.retry_message", "Admin.delete_message",
)  # fmt: skip
async def test_dead_letters_are_listed_in_pages_replayed_once_and_deleted(queen, name):
    await push(queen, name, range(5), ids=[f"{name}-{n}" for n in range(5)])
    for _ in range(5):
        [message] = await reader(queen, name, "g", batch=1).pop()
        assert (await queen.ack(message, "dlq", {"group": "g", "error": f"no {message['data']['n']}"}))[
            "dlq"
        ] is True
    letters = (await queen.queue(name).dlq("g").get())["messages"]
    assert {letter["data"]["n"]: letter["errorMessage"] for letter in letters} == {n: f"no {n}" for n in range(5)}
    assert (await queen.queue(name).dlq("other").get())["messages"] == []
    pages = [await queen.queue(name).dlq("g").limit(2).offset(at).get() for at in (0, 2, 4)]
    assert [len(page["messages"]) for page in pages] == [2, 2, 1]
    assert [letter["id"] for page in pages for letter in page["messages"]] == [letter["id"] for letter in letters]
    day = "2000-01-01T00:00:00Z"
    assert len((await queen.queue(name).dlq().from_(day).to("2999-01-01T00:00:00Z").get())["messages"]) == 5

    address = letters[0]["partitionId"], letters[0]["transactionId"]
    assert (await queen.admin.retry_message(*address))["success"] is True
    with pytest.raises(Exception, match="no such dead letter"):
        await queen.admin.retry_message(*address)
    [replayed] = await reader(queen, name, "g").pop()
    assert replayed["data"] == letters[0]["data"]
    address = letters[1]["partitionId"], letters[1]["transactionId"]
    assert (await queen.admin.delete_message(*address))["success"] is True
    with pytest.raises(Exception, match="no such dead letter"):
        await queen.admin.delete_message(*address)
    assert len((await queen.queue(name).dlq("g").get())["messages"]) == 3


@covers("QueueBuilder.fetch", "QueueBuilder.fetch(offsets)", "QueueBuilder.fetch(max_bytes)")
async def test_records_are_read_by_offset_without_a_trace(queen, name):
    for partition in ("a", "b"):
        await push(queen, name, range(20), partition=partition)
    read = await queen.queue(name).fetch(["a", "b", "absent"], offsets={"b": 15}, max_bytes=200)
    assert [record["payload"]["n"] for record in read["a"]["records"]] == list(range(20))
    assert [record["offset"] for record in read["b"]["records"]] == list(range(15, 20))
    assert (read["a"]["highWatermark"], read["a"]["logStartOffset"], read["a"]["nextOffset"]) == (20, 0, 20)
    assert read["absent"]["records"] == []
    assert len(await reader(queen, name, "g").pop()) == 40, "a read moves nobody's position"


@covers("QueueBuilder.changed_since", "QueueBuilder.changed_since(since)")
async def test_partitions_that_changed_since_a_time_are_found(queen, name):
    await push(queen, name, range(2), partition="a")
    [a] = (await queen.queue(name).changed_since())["partitions"]
    assert (a["name"], a["lastOffset"], a["logStart"]) == ("a", 1, 0)
    b, until = a, time.monotonic() + 10
    while b["lastWriteAt"] <= a["lastWriteAt"]:
        assert time.monotonic() < until
        await push(queen, name, [9], partition="b")
        [b] = [p for p in (await queen.queue(name).changed_since())["partitions"] if p["name"] == "b"]
    since = datetime.fromisoformat(b["lastWriteAt"]).astimezone(timezone.utc)
    changed = await queen.queue(name).changed_since(since)
    assert [p["name"] for p in changed["partitions"]] == ["b"]
    assert changed["safeTime"] is not None
    assert (await queen.queue(name).changed_since("2999-01-01T00:00:00Z"))["partitions"] == []


def test_the_defaults_of_buffers_are_those_that_are_tested():
    assert set(BUFFER_DEFAULTS) == {"message_count", "time_millis", "max_size", "retry_delay_millis"}
