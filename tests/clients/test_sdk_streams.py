"""Stream processors written with Queen's Python SDK: every operator, every kind of window, gates and run options.

Windows in event time are exact whatever the machine does, so their results are compared whole. Windows that an idle
flush closes depend on the clock: what is compared there is that every message is in exactly one window.
"""

import contextlib
import time
from datetime import datetime, timezone

import pytest
from queen.streams import Stream
from queen.streams.runtime.register import StreamsConfigHashMismatch

from consuming import drain, eventually, numbers, push, reader
from sdk_surface import (
    covers,
    held_to_what_it_covers,  # noqa: F401
    sliding_window_gate,
    token_bucket_gate,
)

# A Thursday; every time in these tests counts from it, in seconds.
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
START_MS = int(START.timestamp() * 1000)


@contextlib.asynccontextmanager
async def running(stream, query, url, **options):
    """Runs a stream processor from the oldest message on, and stops it whatever happens."""
    runner = await stream.run(query, url, **{"max_wait_millis": 200, "subscription_mode": "all", **options})
    try:
        yield runner
    finally:
        await runner.stop()


def at(message):
    """The event time of a message, in milliseconds."""
    return START_MS + int(message["data"]["at"] * 1000)


async def push_at(queen, queue, times, partition="Default", **more):
    """Pushes a message for each time, in seconds from START, with a number of its own in `n`."""
    items = [{"data": {"at": second, "n": n, **more}} for n, second in enumerate(times)]
    return await queen.queue(queue).partition(partition).push(items)


async def results(queen, queue, want):
    """The data of what came out, and nothing more than wanted."""
    messages = await drain(queen, queue, "check", want=want)
    assert await reader(queen, queue, "check").pop() == [], "more came out than expected"
    return [message["data"] for message in messages]


async def put_out(message_or_value, context=None):
    return message_or_value


def seconds(context):
    return [(context["windowStart"] - START_MS) / 1000, (context["windowEnd"] - START_MS) / 1000]


def with_window(value, context):
    """After a window: what it held, when it was, and of which key."""
    return {"value": value, "window": seconds(context), "key": context["key"]}


async def processed(runner, messages):
    """Waits until the processor has worked through so many messages."""
    assert await eventually(lambda: put_out(runner.metrics()["messagesTotal"] >= messages)), runner.metrics()


@covers(
    "Stream.from_",
    "Stream.map",
    "Stream.filter",
    "Stream.flat_map",
    "Stream.to",
    "Stream.to(partition)",
    "Stream.run",
    "Stream.run(max_wait_millis)",
    "Stream.run(subscription_mode)",
    "Runner.start",
    "Runner.stop",
    "Runner.metrics",
)
async def test_map_filter_and_flat_map_work_message_by_message(queen, stack, name):
    await push(queen, f"{name}-in", range(10))
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .filter(lambda message: message["data"]["n"] % 2 == 0)
        .map(lambda message: {"n": message["data"]["n"], "mapped": True})
        .to(queen.queue(f"{name}-mapped"))
    )
    async with running(stream, f"{name}-1", stack.url):
        assert [one["n"] for one in await results(queen, f"{name}-mapped", 5)] == [0, 2, 4, 6, 8]
    stream = (
        Stream.from_(queen.queue(f"{name}-mapped"))
        .flat_map(
            lambda message: [{"n": message["data"]["n"] + more} for more in (0, 100) if message["data"]["mapped"]]
        )
        .to(queen.queue(f"{name}-out"), partition=lambda value: "high" if value["n"] >= 100 else "low")
    )
    async with running(stream, name, stack.url) as runner:
        out = await drain(queen, f"{name}-out", "check", want=10)
        assert [m["data"]["n"] for m in out if m["partition"] == "low"] == [0, 2, 4, 6, 8]
        assert [m["data"]["n"] for m in out if m["partition"] == "high"] == [100, 102, 104, 106, 108]
        await processed(runner, 5)
        assert runner.metrics()["errorsTotal"] == 0
    assert await reader(queen, f"{name}-in", f"streams.{name}-1").pop() == [], "also what was filtered out is done"


@covers("Stream.from_queue", "Stream.flatMap")
async def test_the_other_spellings_make_the_same_stream(queen, stack, name):
    await push(queen, f"{name}-in", [1, 2])
    stream = (
        Stream.from_queue(queen.queue(f"{name}-in"))
        .flatMap(lambda message: [message["data"], message["data"]])
        .map(lambda message: message["data"])
        .to(queen.queue(f"{name}-out"), partition="one")
    )
    async with running(stream, name, stack.url):
        out = await drain(queen, f"{name}-out", "check", want=4)
    assert {m["partition"] for m in out} == {"one"}


@covers(
    "Stream.key_by",
    "Stream.window_tumbling",
    "Stream.window_tumbling(event_time)",
    "Stream.window_tumbling(idle_flush_ms)",
    "Stream.aggregate",
)
async def test_tumbling_windows_aggregate_by_key(queen, stack, name):
    await push_at(queen, f"{name}-in", [0, 1, 2.5, 3, 9, 10.5, 20], tag="x")
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .key_by(lambda message: "even" if message["data"]["n"] % 2 == 0 else "odd")
        .window_tumbling(seconds=5, event_time=at, idle_flush_ms=0)
        .aggregate(
            {
                "count": lambda message: 1,
                "sum": lambda message: message["n"],
                "min": lambda message: message["n"],
                "max": lambda message: message["n"],
                "avg": lambda message: message["n"],
                "total": lambda message: 10 * message["n"],
            }
        )
        .map(with_window)
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url):
        out = await results(queen, f"{name}-out", 4)
    found = {(one["key"], *one["window"]): one["value"] for one in out}
    assert set(found) == {("even", 0, 5), ("odd", 0, 5), ("even", 5, 10), ("odd", 10, 15)}
    first = found["even", 0, 5]
    assert {k: first[k] for k in ("count", "sum", "min", "max", "avg", "total")} == {
        "count": 2, "sum": 2, "min": 0, "max": 2, "avg": 1, "total": 20,
    }  # fmt: skip
    assert [found[w]["count"] for w in (("odd", 0, 5), ("even", 5, 10), ("odd", 10, 15))] == [2, 1, 1]


@covers(
    "Stream.keyBy", "Stream.windowTumbling", "Stream.windowSliding", "Stream.windowSession", "Stream.windowCron"
)
async def test_the_other_spellings_of_windows_take_the_other_spellings_of_options(queen, stack, name):
    """One stream of each kind over one queue; the names of options as other SDKs write them."""
    await push_at(queen, f"{name}-in", [0, 1, 200])
    options = {"eventTime": at, "idleFlushMs": 0, "gracePeriod": 0, "allowedLateness": 0, "onLate": "drop"}
    source = Stream.from_(queen.queue(f"{name}-in")).keyBy(lambda message: "k")
    kinds = {
        "tumbling": source.windowTumbling(seconds=60, **options),
        "sliding": source.windowSliding(size=60, slide=60, **options),
        "session": source.windowSession(gap=60, **options),
        "cron": source.windowCron(every="minute", **options),
    }
    for kind, windowed in kinds.items():
        stream = windowed.reduce(lambda total, value: (total or 0) + 1).to(queen.queue(f"{name}-{kind}"))
        async with running(stream, f"{name}-{kind}", stack.url):
            assert await results(queen, f"{name}-{kind}", 1) == [{"value": 2}], kind


@covers("Stream.reduce", "Stream.reduce(initial)", "Stream.window_sliding", "Stream.window_sliding(event_time)",
        "Stream.window_sliding(idle_flush_ms)")  # fmt: skip
async def test_sliding_windows_hold_a_message_in_each_window_that_spans_it(queen, stack, name):
    await push_at(queen, f"{name}-in", [1, 6, 11, 40])
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .window_sliding(size=10, slide=5, event_time=at, idle_flush_ms=0)
        .reduce(lambda seen, value: seen + [value["n"]], [])
        .map(with_window)
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url):
        out = await results(queen, f"{name}-out", 4)
    assert {tuple(one["window"]): one["value"] for one in out} == {
        (-5, 5): [0],
        (0, 10): [0, 1],
        (5, 15): [1, 2],
        (10, 20): [2],
    }


@pytest.mark.parametrize(
    ("every", "times", "windows"),
    [
        ("second", [0.1, 0.9, 1.0, 9], {(0, 1): 2, (1, 2): 1}),
        ("minute", [0, 59, 60, 300], {(0, 60): 2, (60, 120): 1}),
        ("hour", [0, 3599, 3600, 90_000], {(0, 3600): 2, (3600, 7200): 1}),
        ("day", [0, 86_399, 86_400, 500_000], {(0, 86_400): 2, (86_400, 172_800): 1}),
        # Weeks begin on Monday; START is a Thursday.
        ("week", [0, 345_599, 345_600, 2_000_000], {(-259_200, 345_600): 2, (345_600, 950_400): 1}),
    ],
)
@covers("Stream.window_cron", "Stream.window_cron(event_time)", "Stream.window_cron(idle_flush_ms)")
async def test_cron_windows_follow_the_calendar(queen, stack, name, every, times, windows):
    name = f"{name}-{every}"
    await push_at(queen, f"{name}-in", times)
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .window_cron(every=every, event_time=at, idle_flush_ms=0)
        .aggregate({"count": lambda message: 1})
        .map(with_window)
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url):
        out = await results(queen, f"{name}-out", len(windows))
    assert {tuple(one["window"]): one["value"]["count"] for one in out} == windows


@covers("Stream.window_session", "Stream.window_session(event_time)", "Stream.window_session(idle_flush_ms)")
async def test_session_windows_end_with_a_gap(queen, stack, name):
    await push_at(queen, f"{name}-in", [0, 4, 8, 20, 23, 100])
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .window_session(gap=5, event_time=at, idle_flush_ms=0)
        .reduce(lambda seen, value: seen + [value["n"]], [])
        .map(with_window)
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url):
        out = await results(queen, f"{name}-out", 2)
    assert {tuple(one["window"]): one["value"] for one in out} == {(0, 13): [0, 1, 2], (20, 28): [3, 4]}


# A kind of window of ten seconds, or with a gap of ten, for the tests that hold for all.
KINDS = {
    "tumbling": lambda stream, **options: stream.window_tumbling(seconds=10, **options),
    "sliding": lambda stream, **options: stream.window_sliding(size=10, slide=10, **options),
    "session": lambda stream, **options: stream.window_session(gap=10, **options),
    "minute": lambda stream, **options: stream.window_cron(every="minute", **options),
}
# Of each: times in the first window, one that is late when the second time is seen, and one that closes everything.
LATE = {
    "tumbling": (5, 25, 8, 60),
    "sliding": (5, 25, 8, 60),
    "session": (5, 40, 9, 90),
    "minute": (5, 130, 20, 400),
}
NEVER_FLUSH = {"event_time": at, "idle_flush_ms": 0}


async def late_events(queen, stack, name, kind, policy, lateness=0):
    """A message, one that is far later, one that is late, one that closes everything: each its own cycle, so that the
    order in which the processor sees them is this one. Answers the windows that came out, and the runner's counts."""
    first, second, late, last = LATE[kind]
    source = Stream.from_(queen.queue(f"{name}-in"))
    stream = (
        KINDS[kind](source, on_late=policy, allowed_lateness=lateness, **NEVER_FLUSH)
        .reduce(lambda seen, value: seen + [value["at"]], [])
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url, batch_size=1) as runner:
        for done, moment in enumerate((first, second, late, last), 1):
            await push_at(queen, f"{name}-in", [moment])
            await processed(runner, done)
        return runner.metrics()


@pytest.mark.parametrize("kind", KINDS)
@covers("Stream.run(batch_size)")
async def test_a_late_event_is_dropped_and_counted(queen, stack, name, kind):
    name = f"{name}-{kind}"
    first, second, _late, _last = LATE[kind]
    counts = await late_events(queen, stack, name, kind, "drop")
    assert counts["lateEventsTotal"] == 1 and counts["errorsTotal"] == 0, counts
    out = await results(queen, f"{name}-out", 2)
    assert [one["value"] for one in out] == [[first], [second]]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "session"])
async def test_a_late_event_that_is_included_is_a_second_result_of_its_window(queen, stack, name, kind):
    """The window had been emitted: what comes late is emitted alone, and never counts into another window."""
    name = f"{name}-{kind}"
    first, second, late, _last = LATE[kind]
    counts = await late_events(queen, stack, name, kind, "include")
    assert counts["lateEventsTotal"] == 0 and counts["errorsTotal"] == 0, counts
    out = await results(queen, f"{name}-out", 3)
    assert sorted(one["value"] for one in out) == sorted([[first], [late], [second]])


@covers(
    "Stream.window_tumbling(on_late)", "Stream.window_tumbling(allowed_lateness)",
    "Stream.window_sliding(on_late)", "Stream.window_sliding(allowed_lateness)",
    "Stream.window_session(on_late)", "Stream.window_session(allowed_lateness)",
    "Stream.window_cron(on_late)", "Stream.window_cron(allowed_lateness)",
)  # fmt: skip
async def test_an_event_within_the_allowed_lateness_counts_into_its_window(queen, stack, name):
    for kind in KINDS:
        each = f"{name}-{kind}"
        first, second, late, _last = LATE[kind]
        counts = await late_events(queen, stack, each, kind, "drop", lateness=second - first)
        assert counts["lateEventsTotal"] == 0, (kind, counts)
        out = await results(queen, f"{each}-out", 2)
        # A key has one open session: what comes within the lateness counts into that.
        expected = [[first], [second, late]] if kind == "session" else [[first, late], [second]]
        assert sorted(one["value"] for one in out) == sorted(expected), kind


@covers("Stream.window_tumbling(grace_period)", "Stream.window_sliding(grace_period)",
        "Stream.window_session(grace_period)", "Stream.window_cron(grace_period)")  # fmt: skip
async def test_a_grace_period_keeps_a_window_open_for_longer(queen, stack, name):
    """The second message is beyond the window's end, and within its grace period: nothing comes out before the third.
    Each has a key of its own, since a session also ends with the next message of its key."""
    for kind, end in (("tumbling", 10), ("sliding", 10), ("session", 15), ("minute", 60)):
        each = f"{name}-{kind}"
        source = Stream.from_(queen.queue(f"{each}-in")).key_by(lambda message: str(message["data"]["at"]))
        stream = (
            KINDS[kind](source, grace_period=20, **NEVER_FLUSH)
            .reduce(lambda seen, value: seen + [value["at"]], [])
            .to(queen.queue(f"{each}-out"))
        )
        async with running(stream, each, stack.url, batch_size=1) as runner:
            await push_at(queen, f"{each}-in", [5])
            await push_at(queen, f"{each}-in", [end + 19])
            await processed(runner, 2)
            assert await reader(queen, f"{each}-out", "early").pop() == [], kind
            await push_at(queen, f"{each}-in", [end + 20])
            assert [one["value"] for one in await results(queen, f"{each}-out", 1)] == [[5]], kind


FLUSHED = {
    "tumbling": lambda stream: stream.window_tumbling(seconds=1, idle_flush_ms=100),
    "sliding": lambda stream: stream.window_sliding(size=1, slide=1, idle_flush_ms=100),
    "session": lambda stream: stream.window_session(gap=1, idle_flush_ms=100),
    "second": lambda stream: stream.window_cron(every="second", idle_flush_ms=100),
}


@pytest.mark.parametrize("kind", FLUSHED)
async def test_an_idle_flush_closes_windows_that_no_message_closes(queen, stack, name, kind):
    name = f"{name}-{kind}"
    stream = (
        FLUSHED[kind](Stream.from_(queen.queue(f"{name}-in")))
        .reduce(lambda seen, value: seen + [value["n"]], [])
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url) as runner:
        for partition in ("a", "b"):
            await push(queen, f"{name}-in", range(4), partition=partition)
        seen = {"a": [], "b": []}

        async def look():
            for message in await reader(queen, f"{name}-out", "check").pop():
                seen[message["partition"]] += message["data"]["value"]
            return all(len(values) >= 4 for values in seen.values())

        # Every message is in exactly one window, whatever the clock did meanwhile.
        assert await eventually(look), seen
        assert seen == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
        assert runner.metrics()["flushCyclesTotal"] >= 2
        # The state is gone with the window: nothing is emitted again.
        flushed = runner.metrics()["lastFlushAt"]
        assert await eventually(lambda: put_out(runner.metrics()["lastFlushAt"] > flushed))
    assert await reader(queen, f"{name}-out", "check").pop() == []


async def test_an_idle_flush_leaves_a_silent_partition_in_event_time_open(queen, stack, name):
    """Only events move event time: the flush comes by many times and closes nothing."""
    stream = (
        Stream.from_(queen.queue(f"{name}-in"))
        .window_tumbling(seconds=10, event_time=at, idle_flush_ms=20)
        .reduce(lambda seen, value: seen + [value["at"]], [])
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, name, stack.url) as runner:
        await push_at(queen, f"{name}-in", [1, 2])
        await processed(runner, 2)
        for _ in range(5):
            flushed = runner.metrics()["lastFlushAt"]
            assert await eventually(lambda: put_out(runner.metrics()["lastFlushAt"] != flushed))  # noqa: B023
        assert await reader(queen, f"{name}-out", "early").pop() == []
        await push_at(queen, f"{name}-in", [3, 30])
        assert await results(queen, f"{name}-out", 1) == [{"value": [1, 2, 3]}]


async def test_a_window_is_resumed_by_the_next_runner(queen, stack, name):
    def counting():
        return (
            Stream.from_(queen.queue(f"{name}-in"))
            .window_tumbling(seconds=10, event_time=at, idle_flush_ms=0)
            .aggregate({"count": lambda message: 1})
            .to(queen.queue(f"{name}-out"))
        )

    async with running(counting(), name, stack.url) as runner:
        await push_at(queen, f"{name}-in", [1, 2, 3])
        await processed(runner, 3)
    await push_at(queen, f"{name}-in", [4, 20])
    async with running(counting(), name, stack.url):
        assert await results(queen, f"{name}-out", 1) == [{"count": 4}]


@covers("Stream.run(reset)")
async def test_a_changed_chain_is_refused_until_it_is_reset(queen, stack, name):
    def counting(length):
        return (
            Stream.from_(queen.queue(f"{name}-in"))
            .window_tumbling(seconds=length, event_time=at, idle_flush_ms=0)
            .aggregate({"count": lambda message: 1})
            .to(queen.queue(f"{name}-out"))
        )

    async with running(counting(10), name, stack.url) as runner:
        await push_at(queen, f"{name}-in", [1, 2])
        await processed(runner, 2)
    with pytest.raises(StreamsConfigHashMismatch):
        async with running(counting(20), name, stack.url):
            pass
    # The new chain begins with no state, at the place where the old one stopped.
    async with running(counting(20), name, stack.url, reset=True):
        await push_at(queen, f"{name}-in", [3, 40])
        assert await results(queen, f"{name}-out", 1) == [{"count": 1}]


@covers("Stream.foreach")
async def test_foreach_sees_every_value_and_where_it_is_from(queen, stack, name):
    await push(queen, f"{name}-in", range(3), partition="p")
    seen = []

    async def note(value, context):
        seen.append((value["n"], context["partition"]))

    stream = Stream.from_(queen.queue(f"{name}-in")).map(lambda message: message["data"]).foreach(note)
    async with running(stream, name, stack.url) as runner:
        await processed(runner, 3)
    assert seen == [(0, "p"), (1, "p"), (2, "p")]
    assert await reader(queen, f"{name}-in", f"streams.{name}").pop() == []


@covers("Stream.run(on_error)", "Stream.run(logger)")
async def test_a_chain_that_fails_commits_nothing_and_gets_the_batch_again(queen, stack, name):
    await queen.queue(f"{name}-in").config({"lease_time": 1}).create()
    await push(queen, f"{name}-in", range(3), partition="poison")
    failures, said, tries = [], [], []

    class Said:
        @staticmethod
        def info(message, context=None):
            said.append(message)

        warn = error = info

    def fail_twice(message):
        if message["data"]["n"] == 2 and len(tries) < 2:
            tries.append(message["id"])
            raise RuntimeError("poison")
        return message["data"]

    stream = Stream.from_(queen.queue(f"{name}-in")).map(fail_twice).to(queen.queue(f"{name}-out"))
    options = {"on_error": lambda error, where: failures.append((str(error), where["phase"])), "logger": Said}
    async with running(stream, name, stack.url, **options) as runner:
        assert [one["n"] for one in await results(queen, f"{name}-out", 3)] == [0, 1, 2]
        assert runner.metrics()["errorsTotal"] == 2 and "poison" in runner.metrics()["lastError"]
    assert failures == [("poison", "cycle")] * 2 and "cycle failed" in said
    letters = await queen.queue(f"{name}-in").dlq().get()
    assert letters["messages"] == [], "a stream never gives a message up"


@covers("Stream.run(consumer_group)", "Stream.run(max_partitions)", "Stream.run(bearer_token)")
async def test_a_run_reads_as_the_group_it_is_told(queen, stack, name):
    for partition in ("a", "b", "c"):
        await push(queen, f"{name}-in", [1], partition=partition)
    stream = Stream.from_(queen.queue(f"{name}-in")).map(lambda m: m["data"]).to(queen.queue(f"{name}-out"))
    options = {"consumer_group": f"{name}-group", "max_partitions": 1, "bearer_token": "a.b.c"}
    async with running(stream, name, stack.url, **options) as runner:
        await results(queen, f"{name}-out", 3)
        await processed(runner, 3)
        assert runner.metrics()["cyclesTotal"] == 3
    assert await reader(queen, f"{name}-in", f"{name}-group").pop() == []
    assert len(await reader(queen, f"{name}-in", f"streams.{name}").pop()) == 3


@covers("Stream.run(subscription_from)")
async def test_a_run_begins_where_its_subscription_says(queen, stack, name):
    await push(queen, f"{name}-in", range(3))
    # The server's own time of the last message: what has it or a later one is wanted.
    [last] = (await reader(queen, f"{name}-in", "look", batch=3).pop())[-1:]
    until = time.monotonic() + 10
    while True:
        [answer] = await push(queen, f"{name}-in", [3])
        [newest] = (await reader(queen, f"{name}-in", f"look-{answer['offset']}").pop())[-1:]
        if newest["createdAt"][:23] > last["createdAt"][:23]:
            break
        assert time.monotonic() < until
    stream = Stream.from_(queen.queue(f"{name}-in")).map(lambda m: m["data"]).to(queen.queue(f"{name}-out"))
    options = {"subscription_mode": None, "subscription_from": newest["createdAt"]}
    async with running(stream, name, stack.url, **options):
        assert [one["n"] for one in await results(queen, f"{name}-out", 1)] == [3]


@covers("Stream.run(conflation)")
async def test_a_run_that_conflates_works_on_the_newest_message_alone(queen, stack, name):
    await push(queen, f"{name}-in", range(5))
    stream = Stream.from_(queen.queue(f"{name}-in")).map(lambda m: m["data"]).to(queen.queue(f"{name}-out"))
    async with running(stream, name, stack.url, conflation=True):
        assert [one["n"] for one in await results(queen, f"{name}-out", 1)] == [4]


@covers("Stream.gate", "token_bucket_gate", "token_bucket_gate(cost_fn)", "token_bucket_gate(allow_zero_cost)")
async def test_a_token_bucket_lets_its_capacity_through_and_the_rest_later_in_order(queen, stack, name):
    await queen.queue(f"{name}-in").config({"lease_time": 1}).create()
    await push(queen, f"{name}-in", range(12))
    gate = token_bucket_gate(5, 10, cost_fn=lambda value: 0 if value["n"] < 2 else 1, allow_zero_cost=True)
    stream = Stream.from_(queen.queue(f"{name}-in")).gate(gate).to(queen.queue(f"{name}-out"))
    async with running(stream, name, stack.url) as runner:
        assert [one["n"] for one in await results(queen, f"{name}-out", 12)] == list(range(12))
        counts = runner.metrics()
        assert counts["gateDenialsTotal"] > 0 and counts["gateAllowsTotal"] == 12, counts


@covers("sliding_window_gate", "sliding_window_gate(cost_fn)")
async def test_a_sliding_window_gate_keeps_to_its_limit(queen, stack, name):
    await queen.queue(f"{name}-in").config({"lease_time": 1}).create()
    await push(queen, f"{name}-in", range(6))
    gate = sliding_window_gate(4, 1, cost_fn=lambda value: 2)
    stream = Stream.from_(queen.queue(f"{name}-in")).gate(gate).to(queen.queue(f"{name}-out"))
    async with running(stream, name, stack.url) as runner:
        assert [one["n"] for one in await results(queen, f"{name}-out", 6)] == list(range(6))
        assert runner.metrics()["gateDenialsTotal"] > 0


async def test_a_gate_of_ones_own_keeps_its_state_by_key(queen, stack, name):
    """Each key may pass twice for ever: the state outlives the runner, and keys do not count for each other."""
    await queen.queue(f"{name}-in").config({"lease_time": 1}).create()

    def twice(message, context):
        context.state["passed"] = context.state.get("passed", 0) + 1
        return context.state["passed"] <= 2

    def gated():
        source = Stream.from_(queen.queue(f"{name}-in")).key_by(lambda message: message["data"]["n"] % 2)
        return source.gate(twice).to(queen.queue(f"{name}-out"))

    await push(queen, f"{name}-in", [0, 1, 2])
    async with running(gated(), name, stack.url) as runner:
        await processed(runner, 3)
    await push(queen, f"{name}-in", [3, 4, 5])
    async with running(gated(), name, stack.url) as runner:
        # 3 is the second odd one and passes; 4 is the third even one and holds what is behind it.
        assert await eventually(lambda: put_out(runner.metrics().get("gateDenialsTotal", 0) > 2))
    assert [one["n"] for one in await results(queen, f"{name}-out", 4)] == [0, 1, 2, 3]
    assert numbers(await reader(queen, f"{name}-in", f"streams.{name}").pop()) in ([], [4, 5])
