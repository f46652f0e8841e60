"""Stream processors: the SDK's runner, and the commit under it spoken directly."""

import asyncio

import pytest
from queen.streams import Stream

from consuming import drain, eventually, numbers, push, reader

SEPARATOR = "\u001f"


def counting(queen, source, sink, *, seconds=1):
    """Counts and sums per second of event time, whatever the partition."""
    return (
        Stream.from_(queen.queue(source))
        .filter(lambda message: message["data"]["n"] >= 0)
        .window_tumbling(seconds=seconds, event_time=lambda message: message["data"]["at"], idle_flush_ms=0)
        .aggregate({"count": lambda event: 1, "sum": lambda event: event["n"], "min": lambda event: event["n"]})
        .map(lambda value, context: {"n": context["windowStart"], "partition": context["partition"], **value})
        .to(queen.queue(sink))
    )


async def push_timed(queen, queue, partition, events):
    await queen.queue(queue).partition(partition).push([{"data": {"at": at, "n": n}} for at, n in events])


async def test_windows_count_every_event_once_over_restarts_of_the_worker(queen, stack, name):
    source, sink = f"{name}-in", f"{name}-out"
    await queen.queue(source).config({"lease_time": 5}).create()
    partitions, per_window = ("east", "west", "north"), 40
    for window in range(5):
        for partition in partitions:
            events = [(window * 1000 + i * 20, i if i % 4 else -1) for i in range(per_window)]
            await push_timed(queen, source, partition, events)
        # Each window is worked on by a worker of its own: what it leaves open, the next one must find.
        runner = await counting(queen, source, sink).run(
            query_id=name,
            url=stack.url,
            subscription_mode="all",
            batch_size=25,
            max_partitions=4,
            max_wait_millis=200,
        )
        group = f"streams.{name}"
        await eventually(
            lambda: asyncio.sleep(0, runner.metrics()["messagesTotal"] >= len(partitions) * per_window)
        )
        await runner.stop()
        assert runner.metrics()["errorsTotal"] == 0, runner.metrics()
        assert await reader(queen, source, group).pop() == []
    windows = await drain(queen, sink, "check", want=4 * len(partitions))
    good = [i for i in range(per_window) if i % 4]
    wanted = [
        {"n": window * 1000, "partition": partition, "count": len(good), "sum": sum(good), "min": 1}
        for partition in sorted(partitions)
        for window in range(4)
    ]
    found = sorted((message["data"] for message in windows), key=lambda window: (window["partition"], window["n"]))
    assert found == wanted
    assert all(message["partition"] == message["data"]["partition"] for message in windows)
    assert await reader(queen, sink, "check").pop() == [], "the fifth window is still open"


async def test_a_changed_query_is_refused_until_it_is_reset(queen, stack, name):
    first = await counting(queen, name, f"{name}-out").run(query_id=name, url=stack.url, max_wait_millis=100)
    await first.stop()
    again = await counting(queen, name, f"{name}-out").run(query_id=name, url=stack.url, max_wait_millis=100)
    await again.stop()
    assert again.metrics()["serverQueryId"] == first.metrics()["serverQueryId"]
    with pytest.raises(Exception, match="(?i)hash") as refused:
        await counting(queen, name, f"{name}-out", seconds=2).run(query_id=name, url=stack.url)
    assert type(refused.value).__name__ == "StreamsConfigHashMismatch"
    reset = await counting(queen, name, f"{name}-out", seconds=2).run(
        query_id=name, url=stack.url, reset=True, max_wait_millis=100
    )
    await reset.stop()
    assert reset.metrics()["serverQueryId"] == first.metrics()["serverQueryId"]


async def test_a_gate_holds_back_the_tail_in_order(queen, stack, name):
    source, sink = f"{name}-in", f"{name}-out"
    await queen.queue(source).config({"lease_time": 1}).create()
    await push(queen, source, range(9))

    def three_at_a_time(value, context):
        # `seen` counts what was ever let through; each lease lets three more pass.
        context.state["seen"] = context.state.get("seen", 0) + 1
        return context.state["seen"] % 4 != 0

    runner = await (
        Stream.from_(queen.queue(source))
        .gate(three_at_a_time)
        .to(queen.queue(sink))
        .run(query_id=name, url=stack.url, subscription_mode="all", batch_size=9, max_wait_millis=200)
    )
    messages = await drain(queen, sink, "check", want=9, seconds=40)
    await runner.stop()
    assert numbers(messages) == list(range(9))


class RawQuery:
    """The protocol under the runner: register, pop, read state, commit a cycle."""

    def __init__(self, http, queen, name):
        self.http, self.queen, self.name = http, queen, name
        self.source, self.sink, self.group = f"{name}-in", f"{name}-out", f"streams.{name}"
        self.id = self.register("h1").json()["query_id"]
        self.partition = None

    def register(self, config_hash, **more):
        body = {
            "name": self.name,
            "source_queue": self.source,
            "sink_queue": self.sink,
            "config_hash": config_hash,
            **more,
        }
        return self.http.post("/streams/v1/queries", json=body)

    async def pop(self, batch=4):
        messages = await eventually(
            lambda: reader(self.queen, self.source, self.group, batch=batch).pop(), seconds=10
        )
        if messages:
            self.partition = messages[0]["partitionId"]
        return messages

    def cycle(self, **parts):
        body = {
            "query_id": self.id,
            "partition_id": self.partition,
            "consumer_group": self.group,
            "state_ops": [],
            "push_items": [],
            "ack": None,
            "release_lease": True,
            **parts,
        }
        return self.http.post("/streams/v1/cycle", json=body)

    def ack(self, messages, count=None, **more):
        return {
            "transactionId": messages[-1]["transactionId"],
            "leaseId": messages[0]["leaseId"],
            "status": "completed",
            "count": len(messages) if count is None else count,
            **more,
        }

    def state(self, **filters):
        answer = self.http.post(
            "/streams/v1/state/get", json={"query_id": self.id, "partition_id": self.partition, **filters}
        )
        assert answer.status_code == 200, answer.text
        return {row["key"]: row["value"] for row in answer.json()["rows"]}

    def out(self, n):
        return {"queue": self.sink, "partition": "x", "payload": {"n": n}}


def upsert(key, value):
    return {"type": "upsert", "key": key, "value": value}


def delete(key):
    return {"type": "delete", "key": key}


@pytest.fixture
async def raw(queen, http, name):
    query = RawQuery(http, queen, name)
    await queen.queue(query.source).config({"lease_time": 2}).create()
    await push(queen, query.source, range(6), partition="x")
    return query


async def test_state_output_and_position_move_together(raw, queen):
    messages = await raw.pop()
    answer = raw.cycle(
        state_ops=[upsert("a", {"n": 1}), upsert("b", {"n": 2}), delete("a"), upsert("b", {"n": 3})],
        push_items=[raw.out(10), raw.out(11)],
        ack=raw.ack(messages),
    ).json()
    assert answer["success"] is True and answer["ack_result"]["lease_released"] is True, answer
    assert raw.state() == {"b": {"n": 3}}
    assert numbers(await drain(queen, raw.sink, "check", want=2)) == [10, 11]
    assert numbers(await raw.pop()) == [4, 5]


async def test_an_expired_lease_commits_nothing(raw, queen):
    old = await raw.pop()
    new = await raw.pop()
    assert numbers(new) == numbers(old) and new[0]["leaseId"] != old[0]["leaseId"]
    refused = raw.cycle(state_ops=[upsert("a", 1)], push_items=[raw.out(1)], ack=raw.ack(old))
    assert refused.status_code == 200 and refused.json()["success"] is False
    assert "lease" in refused.json()["error"]
    assert raw.state() == {}
    assert (
        raw.cycle(state_ops=[upsert("a", 2)], push_items=[raw.out(2)], ack=raw.ack(new)).json()["success"] is True
    )
    assert raw.state() == {"a": 2}
    assert numbers(await drain(queen, raw.sink, "check", want=1)) == [2]


async def test_a_cycle_sent_twice_counts_once(raw, queen):
    messages = await raw.pop()
    body = {"state_ops": [upsert("a", 1)], "push_items": [raw.out(1)], "ack": raw.ack(messages)}
    assert raw.cycle(**body).json()["success"] is True
    again = raw.cycle(**body)
    assert again.status_code == 200 and again.json()["success"] is False
    assert numbers(await drain(queen, raw.sink, "check", want=1)) == [1]
    assert await reader(queen, raw.sink, "check").pop() == []


async def test_a_partial_acknowledgement_keeps_the_lease_and_never_skips(raw):
    messages = await raw.pop(batch=3)
    answer = raw.cycle(ack=raw.ack(messages, count=2), release_lease=False).json()
    assert answer["success"] is True and answer["ack_result"]["lease_released"] is False, answer
    over = raw.cycle(ack=raw.ack(messages, count=50), release_lease=False).json()
    assert over["success"] is True, over
    assert numbers(await raw.pop(batch=10)) == [3, 4, 5], "the count ends with the batch"


async def test_a_misspelt_status_gives_the_batch_back(raw):
    messages = await raw.pop()
    answer = raw.cycle(ack=raw.ack(messages, status="Completed")).json()
    assert answer["success"] is True and answer["ack_result"]["lease_released"] is True, answer
    assert numbers(await raw.pop()) == [0, 1, 2, 3]


async def test_state_is_found_by_key_by_prefix_and_by_ripeness(raw):
    await raw.pop()
    rows = {
        f"t{SEPARATOR}1": {"windowEnd": 1000},
        f"t{SEPARATOR}2": {"windowEnd": 2000},
        "a_b": {"windowEnd": "1000"},
        "axb": {"acc": None},
        "100%": None,
    }
    assert raw.cycle(state_ops=[upsert(key, value) for key, value in rows.items()]).json()["success"] is True
    assert raw.state() == rows
    assert set(raw.state(keys=["axb", "absent"])) == {"axb"}
    assert set(raw.state(key_prefix=f"t{SEPARATOR}")) == {f"t{SEPARATOR}1", f"t{SEPARATOR}2"}
    assert set(raw.state(key_prefix="a_")) == {"a_b"}, "no wildcards"
    assert set(raw.state(ripe_at_or_before=1000)) == {f"t{SEPARATOR}1"}
    assert raw.state(key_prefix="a", ripe_at_or_before=5000) == {}


async def test_two_flushes_of_one_window_emit_it_once(raw, queen):
    """A flush has no lease. The second one deletes a row that is gone, so it was computed on stale state."""
    messages = await raw.pop()
    assert (
        raw.cycle(state_ops=[upsert("w", {"acc": 1, "windowEnd": 5})], ack=raw.ack(messages)).json()["success"]
        is True
    )
    flush = {"state_ops": [delete("w")], "push_items": [raw.out(1)]}
    assert raw.cycle(**flush).json()["success"] is True
    second = raw.cycle(**flush)
    assert second.status_code == 200 and second.json()["success"] is False, second.text
    assert numbers(await drain(queen, raw.sink, "check", want=1)) == [1]
    assert await reader(queen, raw.sink, "check").pop() == []


async def test_registration_says_whether_the_query_is_new(raw):
    same = raw.register("h1").json()
    assert (same["query_id"], same["fresh"], same["reset"]) == (raw.id, False, False)
    changed = raw.register("h2")
    assert changed.status_code == 409 and changed.json()["success"] is False
    await raw.pop()
    assert raw.cycle(state_ops=[upsert("a", 1)]).json()["success"] is True
    reset = raw.register("h2", reset=True)
    assert reset.status_code == 200 and reset.json()["reset"] is True and reset.json()["query_id"] == raw.id
    assert raw.state() == {}
