"""Transactions of Queen's Python SDK: acknowledgements and pushes across queues, all or nothing."""

import pytest

from consuming import eventually, numbers, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401


@covers(
    "Queen.transaction", "TransactionBuilder.ack", "TransactionBuilder.ack(context)", "TransactionBuilder.queue",
    "TransactionBuilder.commit", "TransactionQueueBuilder.partition", "TransactionQueueBuilder.push",
)  # fmt: skip
async def test_messages_move_from_queue_to_queues_in_one_commit(queen, name):
    await push(queen, name, range(3))
    messages = await reader(queen, name, "g").pop()
    done = await (
        queen.transaction()
        .ack(messages[:2], context={"consumer_group": "g"})
        .queue(f"{name}-bills")
        .partition("eu")
        .push([{"data": {"n": 10}, "transactionId": f"{name}-10"}, {"payload": {"n": 11}}])
        .queue(f"{name}-mail")
        .push({"n": 12})
        .commit()
    )
    assert done["success"] is True and len(done["results"]) == 5
    assert {result["type"] for result in done["results"]} == {"ack", "push"}
    assert numbers(await reader(queen, f"{name}-bills", "check", partition="eu").pop()) == [10, 11]
    assert numbers(await reader(queen, f"{name}-mail", "check").pop()) == [12]
    assert (await queen.ack(messages[2], True, {"group": "g"}))["success"] is True
    assert await reader(queen, name, "g").pop() == []


@covers("TransactionBuilder.ack(status)")
async def test_a_transaction_can_give_a_message_up(queen, name):
    await push(queen, name, range(2))
    [poison] = await reader(queen, name, "g", batch=1).pop()
    transaction = queen.transaction().ack(poison, status="dlq", context={"consumer_group": "g"})
    assert (await transaction.queue(f"{name}-out").push({"n": 1}).commit())["success"] is True
    assert [letter["data"]["n"] for letter in (await queen.queue(name).dlq("g").get())["messages"]] == [0]
    assert numbers(await reader(queen, name, "g").pop()) == [1]


async def test_a_duplicate_undoes_the_whole_bundle(queen, name):
    await push(queen, name, range(2))
    await push(queen, f"{name}-out", [0], ids=["taken"])
    messages = await reader(queen, name, "g").pop()
    bundle = queen.transaction().ack(messages, context={"consumer_group": "g"}).queue(f"{name}-out")
    with pytest.raises(Exception, match="taken"):
        await bundle.push([{"data": {"n": 1}}, {"data": {"n": 2}, "transactionId": "taken"}]).commit()
    assert numbers(await reader(queen, f"{name}-out", "check").pop()) == [0]
    again = queen.transaction().ack(messages, context={"consumer_group": "g"}).queue(f"{name}-out")
    assert (await again.push({"data": {"n": 1}}).commit())["success"] is True, "the lease is still good"
    assert await reader(queen, name, "g").pop() == []


async def test_a_lease_that_ran_out_undoes_the_whole_bundle(queen, name):
    await queen.queue(name).config({"lease_time": 1}).create()
    await push(queen, name, range(2))
    old = await reader(queen, name, "g").pop()
    new = await eventually(lambda: reader(queen, name, "g").pop())
    assert numbers(new) == [0, 1]
    late = queen.transaction().ack(old, context={"consumer_group": "g"}).queue(f"{name}-out").push({"n": 1})
    with pytest.raises(Exception, match="lease"):
        await late.commit()
    assert await reader(queen, f"{name}-out", "check").pop() == []


async def test_a_transaction_of_nothing_is_refused_by_the_sdk(queen):
    with pytest.raises(Exception, match="no operations"):
        await queen.transaction().commit()
