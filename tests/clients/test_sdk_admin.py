"""The administrative side of Queen's Python SDK: what is there, how far groups have come, and moving them."""

import pytest

from consuming import eventually, numbers, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401


async def filled(queen, name):
    """A queue of two partitions of three messages, of which a group has acknowledged two and holds none."""
    await queen.queue(name).namespace(name).task("bill").create()
    for partition in ("a", "b"):
        await push(queen, name, range(3), partition=partition)
    done = await reader(queen, name, "g", batch=2, partition="a").pop()
    assert (await queen.ack(done, True, {"group": "g"}))["success"] is True
    return done


@covers(
    "Admin.get_overview", "Admin.get_namespaces", "Admin.get_tasks", "Admin.list_queues", "Admin.get_queue_depth",
    "Admin.get_queue_depth(group)", "Admin.get_partitions",
)  # fmt: skip
async def test_what_there_is_can_be_listed(queen, name):
    await filled(queen, name)
    overview = await queen.admin.get_overview()
    assert overview["queues"] >= 1 and overview["partitions"] >= 2, overview
    assert name in {one["namespace"] for one in (await queen.admin.get_namespaces())["namespaces"]}
    assert "bill" in {one["task"] for one in (await queen.admin.get_tasks())["tasks"]}
    [listed] = [one for one in (await queen.admin.list_queues(limit=1000))["queues"] if one["name"] == name]
    assert (listed["namespace"], listed["partitions"], listed["messages"]["total"]) == (name, 2, 6)
    detail = await queen.admin.get_queue(name)
    assert {one["name"]: one["stats"]["total"] for one in detail["partitions"]} == {"a": 3, "b": 3}
    depth = await queen.admin.get_queue_depth(name, group="g")
    assert (depth["pending"], depth["partitionsPending"]) == (4, 2)
    assert (await queen.admin.get_queue_depth(name))["queue"] == name
    partitions = (await queen.admin.get_partitions(queue=name, limit=10))["partitions"]
    assert {one["partition"] for one in partitions} == {"a", "b"}


@covers("Admin.list_messages", "Admin.get_message")
async def test_a_message_can_be_looked_at(queen, name):
    [first, _] = await filled(queen, name)
    listed = (await queen.admin.list_messages(queue=name, partition="a", limit=10))["messages"]
    assert len(listed) == 3
    message = await queen.admin.get_message(first["partitionId"], first["transactionId"])
    assert (message["data"], message["queue"], message["partition"]) == (first["data"], name, "a")
    with pytest.raises(Exception, match="message"):
        await queen.admin.get_message(first["partitionId"], "absent")


@covers("Admin.get_trace_names", "Admin.get_traces_by_name", "Admin.get_traces_for_message")
async def test_traces_are_found_by_name_and_by_message(queen, http, name):
    [first, _] = await filled(queen, name)
    address = {"transactionId": first["transactionId"], "partitionId": first["partitionId"]}
    sent = {**address, "traceNames": [f"{name}-t"], "eventType": "step", "data": {"n": 1}}
    assert http.post("/api/v1/traces", json=sent).status_code == 201
    assert f"{name}-t" in {
        one["trace_name"] for one in (await queen.admin.get_trace_names(limit=1000))["trace_names"]
    }
    for found in (
        await queen.admin.get_traces_by_name(f"{name}-t", limit=10),
        await queen.admin.get_traces_for_message(first["partitionId"], first["transactionId"]),
    ):
        assert [(one["event_type"], one["data"]) for one in found["traces"]] == [("step", {"n": 1})]


@covers(
    "Admin.get_status", "Admin.get_queue_stats", "Admin.get_queue_detail", "Admin.get_analytics", "Admin.health",
    "Admin.metrics", "Admin.get_system_metrics", "Admin.get_worker_metrics", "Admin.refresh_consumer_stats",
)  # fmt: skip
async def test_an_operator_sees_how_the_server_is_doing(queen, name):
    await filled(queen, name)
    assert (await queen.admin.health())["status"] == "healthy"
    assert isinstance(await queen.admin.get_status(), dict)
    stats = await queen.admin.get_queue_stats(limit=1000)
    assert name in {one["name"] for one in stats["queues"]}, stats
    assert (await queen.admin.get_queue_detail(name))["queue"]["name"] == name
    for answer in (
        await queen.admin.get_analytics(interval="minute"),
        await queen.admin.metrics(),
        await queen.admin.get_system_metrics(),
        await queen.admin.get_worker_metrics(),
        await queen.admin.refresh_consumer_stats(),
    ):
        assert isinstance(answer, dict) and answer and "error" not in answer


@covers(
    "Admin.list_consumer_groups", "Admin.get_consumer_group", "Admin.get_lagging_consumers",
    "Admin.get_lagging_consumers(min_lag_seconds)",
)  # fmt: skip
async def test_how_far_groups_have_come_is_told(queen, name):
    await filled(queen, name)
    [group] = [one for one in await queen.admin.list_consumer_groups() if one["queueName"] == name]
    assert (group["name"], group["totalLag"], group["partitionsWithLag"]) == ("g", 4, 2)
    partitions = {one["partition"]: one for one in (await queen.admin.get_consumer_group("g"))[name]["partitions"]}
    assert partitions["a"]["offsetLag"] == 1

    async def lagging():
        return [one for one in await queen.admin.get_lagging_consumers(min_lag_seconds=0) if name in one.values()]

    assert await eventually(lagging)
    assert [
        one for one in await queen.admin.get_lagging_consumers(min_lag_seconds=3600) if name in one.values()
    ] == []


@covers("Admin.seek_consumer_group", "Admin.seek_consumer_group(options)", "Queen.update_consumer_group_timestamp")
async def test_a_group_is_moved_to_the_end_and_back(queen, name):
    [first, _] = await filled(queen, name)
    moved = await queen.admin.seek_consumer_group("g", name, {"toEnd": True})
    assert moved["success"] is True
    assert await reader(queen, name, "g").pop() == []
    await queen.admin.seek_consumer_group("g", name, {"timestamp": "2000-01-01T00:00:00Z"})
    assert len(await reader(queen, name, "g").pop()) == 6
    with pytest.raises(Exception, match="body is empty"):
        await queen.admin.seek_consumer_group("g", name)
    answer = await queen.update_consumer_group_timestamp("g", "2000-01-01T00:00:00Z")
    assert answer["success"] is True


@covers(
    "Queen.delete_consumer_group", "Queen.delete_consumer_group(delete_metadata)",
    "Admin.delete_consumer_group_for_queue", "Admin.delete_consumer_group_for_queue(delete_metadata)",
)  # fmt: skip
async def test_a_group_that_is_deleted_starts_over(queen, name):
    await push(queen, name, range(3))
    group = f"{name}-group"
    for delete in (
        lambda: queen.delete_consumer_group(group, delete_metadata=True),
        lambda: queen.admin.delete_consumer_group_for_queue(group, name, delete_metadata=True),
    ):
        messages = await reader(queen, name, group).pop()
        assert numbers(messages) == [0, 1, 2]
        assert (await queen.ack(messages, True, {"group": group}))["success"] is True
        assert await reader(queen, name, group).pop() == []
        assert (await delete())["success"] is True
    assert numbers(await reader(queen, name, group).pop()) == [0, 1, 2]


@covers("Admin.clear_queue", "Admin.clear_queue(partition)", "Admin.move_message_to_dlq")
async def test_what_queen_itself_has_dropped_says_so(queen, name):
    for call in (queen.admin.clear_queue(name, partition="p"), queen.admin.move_message_to_dlq("p", "t")):
        with pytest.raises(NotImplementedError):
            await call
