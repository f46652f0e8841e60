"""Acknowledge and push in one step: all of it or nothing."""

import pytest

from consuming import drain, eventually, numbers, push, reader


async def held_one(queen, queue, lease_seconds=60):
    await queen.queue(queue).config({"lease_time": lease_seconds}).create()
    await push(queen, queue, [1])
    return (await reader(queen, queue, "g").pop())[0]


async def test_an_acknowledgement_and_a_push_land_together(queen, name):
    message = await held_one(queen, name)
    result = await (
        queen.transaction()
        .ack(message, "completed", {"consumer_group": "g"})
        .queue(f"{name}-out")
        .push([{"data": {"n": 10}}, {"data": {"n": 11}}])
        .commit()
    )
    assert result["success"] is True
    assert [step["type"] for step in result["results"]] == ["ack", "push", "push"]
    assert numbers(await drain(queen, f"{name}-out", "g", want=2)) == [10, 11]
    assert await reader(queen, name, "g").pop() == []


async def test_pushes_to_several_queues_and_partitions_land_together(queen, name):
    transaction = queen.transaction()
    for partition in ("a", "b"):
        transaction = transaction.queue(f"{name}-1").partition(partition).push({"data": {"n": partition}})
    await transaction.queue(f"{name}-2").push({"data": {"n": "c"}}).commit()
    assert sorted(numbers(await drain(queen, f"{name}-1", "g", want=2))) == ["a", "b"]
    assert numbers(await drain(queen, f"{name}-2", "g", want=1)) == ["c"]


async def test_a_duplicate_push_undoes_the_acknowledgement(queen, name):
    await push(queen, f"{name}-out", [0], ids=["known"])
    message = await held_one(queen, name)
    with pytest.raises(Exception, match="(?i)dup"):
        await (
            queen.transaction()
            .ack(message, "completed", {"consumer_group": "g"})
            .queue(f"{name}-out")
            .push([{"data": {"n": 1}, "transactionId": "known"}])
            .queue(f"{name}-more")
            .push([{"data": {"n": 2}}])
            .commit()
        )
    assert (await queen.ack(message, True, {"group": "g"}))["success"] is True, "the lease must still be good"
    assert numbers(await drain(queen, f"{name}-out", "g", want=1)) == [0]
    assert await reader(queen, f"{name}-more", "g").pop() == []


async def test_a_lost_lease_undoes_the_push(queen, name):
    message = await held_one(queen, name, lease_seconds=1)
    assert await eventually(lambda: reader(queen, name, "g").pop()), "another worker has it now"
    with pytest.raises(Exception, match="(?i)lease"):
        await (
            queen.transaction()
            .ack(message, "completed", {"consumer_group": "g"})
            .queue(f"{name}-out")
            .push([{"data": {"n": 1}}])
            .commit()
        )
    assert await reader(queen, f"{name}-out", "g").pop() == []
